"use strict";
// Sorting: a click on a heading sorts its table by that column, a second click turns it round.
const number = text => {
  const found = text.replace(/[\s\u202f]/g, "").match(/^[+-]?\d+(\.\d+)?/);
  return found ? parseFloat(found[0]) : null;
};
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map(row => {
        const text = row.cells[column].textContent.trim();
        return { row, text, value: number(text) };
      });
      const compare = (a, b) => {
        if (a.value === null || b.value === null) {
          if (a.value !== b.value) return a.value === null ? 1 : -1;  /* what is unknown comes last */
          return (up ? 1 : -1) * a.text.localeCompare(b.text);
        }
        return (up ? 1 : -1) * (a.value - b.value);
      };
      table.tBodies[0].append(...rows.sort(compare).map(entry => entry.row));
    });
  });
}
// Hints: what a mark of a drawing says, shown at once beside the pointer.
const hint = document.getElementById("hint");
document.addEventListener("pointermove", event => {
  const mark = event.target.closest && event.target.closest("g.tip");
  const title = mark && mark.querySelector("title");
  hint.hidden = !title;
  if (!title) return;
  hint.textContent = title.textContent;
  const left = Math.min(event.clientX + 14, innerWidth - hint.offsetWidth - 8);
  const above = event.clientY - hint.offsetHeight - 12;
  hint.style.left = `${Math.max(8, left)}px`;
  hint.style.top = `${above < 8 ? event.clientY + 16 : above}px`;
});
