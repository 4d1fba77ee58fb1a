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
          const cell = row.cells[column], shown = cell.textContent.trim();
          if (cell.dataset.value !== undefined) return parseFloat(cell.dataset.value);
          return cell.classList.contains("number") ? parseFloat(shown.replaceAll(",", "")) : shown;
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

  // A link into something folded opens it.
  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
