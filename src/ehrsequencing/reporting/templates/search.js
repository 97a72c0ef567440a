const rows = [...document.querySelectorAll("tbody tr")];
document.getElementById("search").addEventListener("input", (event) => {
  const text = event.target.value.trim().toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(text);
  const left = rows.filter((row) => !row.hidden).length;
  document.getElementById("found").textContent = left ? `${left} of ${rows.length}` : `nothing matches “${event.target.value}”`;
});
