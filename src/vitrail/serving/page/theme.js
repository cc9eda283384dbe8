// Before anything is drawn: light or dark as chosen here before, else as the system says.
try {
  const chosen = localStorage.getItem("vitrail-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // the browser keeps nothing
}
