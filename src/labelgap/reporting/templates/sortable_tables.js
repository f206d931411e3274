// Tables that a reader can sort by any column and filter by name. Without this script they are plain tables.
(() => {
  "use strict";
  for (const part of document.querySelectorAll(".sortable")) {
    const table = part.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells], values = new Map();

    const read = (column) => {
      if (!values.has(column)) {
        const text = "text" in heads[column].dataset;
        values.set(column, new Map(rows.map((row) => {
          const cell = row.cells[column].textContent.trim();
          const number = parseFloat(cell.replace(/[,G]/g, ""));
          return [row, text ? cell : Number.isNaN(number) ? null : number];
        })));
      }
      return values.get(column);
    };

    const sort = (column) => {
      const descending = heads[column].getAttribute("aria-sort") === "ascending";
      const value = read(column);
      const compare = (one, other) => typeof one === "string" ? one.localeCompare(other, undefined, { numeric: true }) : one - other;
      const sorted = [...rows].sort((one, other) => {
        const a = value.get(one), b = value.get(other);
        if (a === null || b === null) return (a === null) - (b === null);
        return descending ? compare(b, a) : compare(a, b);
      });
      for (const head of heads) head.removeAttribute("aria-sort");
      heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
      body.append(...sorted);
    };

    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(column));
      head.append(button);
    });

    const filter = part.querySelector(".filter"), status = filter.querySelector("[role=status]");
    filter.hidden = false;
    filter.querySelector("input").addEventListener("input", (event) => {
      const wanted = event.target.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
        shown += !row.hidden;
      }
      status.textContent = wanted ? `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")}` : "";
    });
  }
})();
