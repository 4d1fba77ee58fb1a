"""Statistics, curves and the HTML page. Floor 3: reads numbers and manifests, knows no env and no algorithm."""
