"use strict";
(() => {
  const root = document.documentElement;

  // Theme: the system's until someone chooses.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });

  // Tables: a click on a heading sorts by it, a second click the other way round.
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => {
          const cell = row.cells[column];
          return cell.dataset.value !== undefined ? parseFloat(cell.dataset.value) : cell.textContent.trim();
        };
        const body = table.tBodies[0];
        [...body.rows]
          .sort((a, b) => {
            const x = value(a), y = value(b);
            if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
            const order = typeof x === "number" ? x - y : x.localeCompare(y);
            return down ? -order : order;
          })
          .forEach((row) => body.append(row));
      });
    });
  }

  // Curves: the legend turns methods off and on, the pointer reads values.
  const steps = (x) => (x >= 1e6 ? (x / 1e6).toPrecision(3) + "M" : x >= 1e3 ? Math.round(x / 1e3) + "k" : Math.round(x));
  for (const figure of document.querySelectorAll("figure.curves")) {
    const data = JSON.parse(figure.dataset.curves);
    const plot = figure.querySelector(".plot");
    const cursor = figure.querySelector(".cursor");
    const caption = figure.querySelector(".at");
    const buttons = [...figure.querySelectorAll(".legend button")];
    buttons.forEach((button, i) => {
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        for (const part of ["line", "band"]) {
          const group = document.getElementById(`${data.name}-${part}-${i}`);
          if (group) group.style.display = shown ? "" : "none";
        }
      });
    });
    const [left, top, right, bottom] = data.frame;
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width - left) / (right - left);
      if (share < 0 || share > 1) return leave();
      const at = data.xlim[0] + share * (data.xlim[1] - data.xlim[0]);
      cursor.style.cssText =
        `display:block;left:${event.clientX - box.left}px;top:${top * box.height}px;height:${(bottom - top) * box.height}px`;
      caption.textContent = `at ${steps(at)} steps`;
      data.bands.forEach((band, i) => {
        let best = 0;
        band.x.forEach((x, k) => { if (Math.abs(x - at) < Math.abs(band.x[best] - at)) best = k; });
        const y = band.y[best];
        buttons[i].querySelector("output").value =
          y === null ? "" : data.share ? Math.round(100 * y) + " %" : y.toPrecision(3);
      });
    });
    const leave = () => {
      cursor.style.display = "none";
      caption.textContent = "";
      buttons.forEach((button) => { button.querySelector("output").value = ""; });
    };
    plot.addEventListener("pointerleave", leave);
  }

  // A link to a run opens it.
  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
