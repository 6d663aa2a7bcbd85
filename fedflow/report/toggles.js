// Check boxes hide and show methods in all curves. The page reads well without this.
for (const group of document.querySelectorAll(".toggles")) {
  group.hidden = false;
  group.addEventListener("change", ({ target }) => {
    for (const part of ["line", "band", "link", "name"]) {
      for (const drawn of document.querySelectorAll(`#curves [id$="-${part}-${target.dataset.place}"]`)) {
        drawn.style.display = target.checked ? "" : "none";
      }
    }
  });
}
