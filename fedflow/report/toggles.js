// Controls hide and show methods in all curves, and change their vertical axis. The page reads well without this.
for (const group of document.querySelectorAll(".toggles")) {
  group.hidden = false;
  group.addEventListener("change", ({ target }) => {
    if (target.name === "range") {
      for (const drawn of document.querySelectorAll("#curves .zoomed, #curves .full")) {
        drawn.hidden = !drawn.classList.contains(target.value);
      }
      return;
    }
    for (const part of ["line", "band", "link", "name"]) {
      for (const drawn of document.querySelectorAll(`#curves [id$="-${part}-${target.dataset.place}"]`)) {
        drawn.style.display = target.checked ? "" : "none";
      }
    }
  });
}
