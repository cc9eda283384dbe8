// A click on a heading sorts its table; a second click turns the order around.
for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.addEventListener("click", (event) => {
    const heading = event.target.closest("th");
    if (!heading) return;
    const down = heading.getAttribute("aria-sort") === "ascending";
    const key = (row) => row.cells[heading.cellIndex].textContent.trim();
    const number = (text) => (text === "–" ? Infinity : Number(text.replace(/[,%]/g, "")));
    const numeric = heading.classList.contains("number");
    const order = (a, b) => (numeric ? number(a) - number(b) || 0 : a.localeCompare(b, undefined, { numeric: true }));
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? order(key(b), key(a)) : order(key(a), key(b))));
    table.tBodies[0].append(...rows);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  });
}
