// Headings of tables become buttons that sort by their column. The page reads well without this.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.sort;
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return isNaN(x) ? x.localeCompare(y) * (down ? -1 : 1) : (y - x) * (down ? 1 : -1);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}
