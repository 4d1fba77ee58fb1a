"""Statistics, curves and the HTML page. Floor 3: reads numbers and manifests, knows no world and no algorithm."""
