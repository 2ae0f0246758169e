const box = document.getElementById("cell");
const put = (tag, parent, text) => { const e = parent.appendChild(document.createElement(tag)); if (text !== undefined) e.textContent = text; return e; };
const svg = (tag, parent, attributes) => { const e = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag)); for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v); return e; };
function show(name) {
  const cell = CELLS.cells[name];
  if (!cell) return;
  for (const a of document.querySelectorAll(".matrix a.on")) a.classList.remove("on");
  for (const a of document.querySelectorAll(".matrix a")) if (a.getAttribute("href") === "#" + name) a.classList.add("on");
  box.hidden = false;
  box.textContent = "";
  const close = put("button", box, "×");
  close.setAttribute("aria-label", "close");
  close.onclick = () => { box.hidden = true; };
  put("b", box, cell.title);
  const legend = put("ul", box); legend.className = "legend";
  const row = put("div", box); row.className = "row";
  const drawing = svg("svg", row, { viewBox: "0 0 760 220", role: "img" });
  const lines = cell.lines.map(([label, of]) => [label, CELLS.lines[of]]);
  const top = 1.05 * Math.max(1, ...lines.flatMap(([, l]) => l[2]));
  const end = Math.max(...lines.map(([, l]) => l[0] + l[1] * l[2].length));
  const x = t => 46 + 700 * t / end, y = v => 196 - 184 * v / top;
  for (let i = 0; i <= 4; i++) {
    svg("line", drawing, { x1: 46, x2: 746, y1: y(top * i / 4), y2: y(top * i / 4), class: "s-grid" });
    svg("text", drawing, { x: 40, y: y(top * i / 4) + 4, "text-anchor": "end", "font-size": 12, class: "f-ink" }).textContent = (top * i / 4).toPrecision(3);
  }
  for (let t = 0; t <= end; t += 5) svg("text", drawing, { x: x(t), y: 214, "text-anchor": "middle", "font-size": 12, class: "f-ink" }).textContent = t + " s";
  lines.forEach(([label, [from, step, values]], i) => {
    const points = values.map((v, j) => x(from + j * step).toFixed(1) + "," + y(v).toFixed(1)).join(" ");
    svg("polyline", drawing, { points, fill: "none", class: "s-" + i, "stroke-width": i ? 1.5 : 2.5 });
    const item = put("li", legend); put("i", item).className = "b-" + i; item.append(label);
  });
  put("li", legend, "goodput, Mbit/s");
  const table = put("table", row);
  for (const [k, v] of Object.entries(cell.figures)) { const tr = put("tr", table); put("td", tr, k); put("td", tr, v); }
}
addEventListener("click", e => { const a = e.target.closest('a[href^="#"]'); if (a) { e.preventDefault(); show(a.getAttribute("href").slice(1)); } });
if (location.hash) show(location.hash.slice(1));
