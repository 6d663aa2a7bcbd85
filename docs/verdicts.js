// Menus above the table of verdicts. The table reads well without this.
// ?study=feddyn in the address selects a study.
const table = document.querySelector("table.verdicts");
const rows = table ? [...table.tBodies[0].rows] : [];
const bar = document.createElement("p");
const shown = document.createElement("span");
const menus = ["paper", "verdict", "scale", "planned", "results", "study"].map((key) => {
  const menu = document.createElement("select");
  menu.name = key;
  menu.append(new Option(`${key}: every`, ""));
  for (const name of [...new Set(rows.map((row) => row.dataset[key]))].sort()) {
    menu.append(new Option(name, name));
  }
  menu.value = new URLSearchParams(location.search).get(key) ?? "";
  menu.addEventListener("change", filter);
  const label = document.createElement("label");
  label.append(menu);
  bar.append(label, " ");
  return menu;
});

function filter() {
  for (const row of rows) row.hidden = menus.some((menu) => menu.value && menu.value !== row.dataset[menu.name]);
  shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
}

if (table) {
  bar.className = "verdict-filter";
  bar.append(shown);
  (table.closest(".md-typeset__scrollwrap") ?? table).before(bar);
  filter();
}
