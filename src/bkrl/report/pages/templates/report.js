(() => {
  // Curves: the legend turns lines off and on, the pointer or the arrow keys read values.
  const steps = (x) => (x >= 999.5e6 ? +(x / 1e9).toPrecision(3) + "G" : x >= 999.5e3 ? +(x / 1e6).toPrecision(3) + "M" : x >= 999.5 ? +(x / 1e3).toPrecision(3) + "k" : Math.round(x));
  for (const figure of document.querySelectorAll("figure.curves")) {
    const data = JSON.parse(figure.dataset.curves);
    const area = figure.querySelector(".area");
    const cursor = figure.querySelector(".cursor");
    const caption = figure.querySelector(".at");
    const buttons = [...figure.querySelectorAll(".legend button")];
    let at = null;

    buttons.forEach((button, i) => {
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        for (const part of area.querySelectorAll(`[id$="-${i}"]`)) part.style.display = shown ? "" : "none";
      });
    });

    const [left, right] = data.xlim;
    const number = (y) => (data.share ? Math.round(100 * y) + " %" : +y.toPrecision(3));
    const read = (x) => {
      at = x;
      cursor.style.display = "block";
      cursor.style.left = `${(100 * (x - left)) / (right - left)}%`;
      caption.textContent = data.xlim[1] <= 1 ? `at ${x.toFixed(2)}` : `at ${steps(x)} steps`;
      data.bands.forEach((band, i) => {
        let best = 0;
        band.x.forEach((there, k) => { if (Math.abs(there - x) < Math.abs(band.x[best] - x)) best = k; });
        const [y, low, high] = [band.y[best], band.low[best], band.high[best]];
        const spread = low === null || high === null ? "" : ` (${number(low)} to ${number(high)})`;
        buttons[i].querySelector("output").value = y === null ? "" : number(y) + spread;
      });
    };
    const leave = () => {
      at = null;
      cursor.style.display = "none";
      caption.textContent = "";
      buttons.forEach((button) => { button.querySelector("output").value = ""; });
    };
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      read(left + share * (right - left));
    });
    area.addEventListener("pointerleave", leave);
    area.addEventListener("blur", leave);
    area.addEventListener("keydown", (event) => {
      const grid = data.bands.reduce((a, b) => (b.x.length > a.length ? b.x : a), []);
      if (event.key === "Escape") return leave();
      const turn = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!turn || !grid.length) return;
      event.preventDefault();
      const now = at === null ? (turn > 0 ? -1 : grid.length) : grid.findIndex((x) => x >= at);
      const next = Math.min(grid.length - 1, Math.max(0, now + turn));
      read(grid[next]);
    });
  }
})();
