// Two figures as SVG: which domains images belonged to, and three shares over time.
const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 110, FOOT = 16, SPAN = 900;

function add(parent, name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

export const colour = domain => (domain === 0 ? "d0" : `d${((domain - 1) % 8) + 1}`);

function begin(svg) {
  const width = Math.max(svg.clientWidth, 200);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.replaceChildren();
  const floor = HEIGHT - FOOT;
  add(svg, "line", { class: "axis", x1: 0, x2: width, y1: floor + .5, y2: floor + .5 });
  for (const minutes of [15, 10, 5, 0]) {
    const x = width * (1 - minutes * 60 / SPAN);
    const anchor = minutes === 15 ? "start" : minutes === 0 ? "end" : "middle";
    add(svg, "text", { x, y: HEIGHT - 3, "text-anchor": anchor },
      minutes ? `−${minutes} min` : "now");
  }
  return { width, floor };
}

export function strip(svg, points, now) {
  const { width, floor } = begin(svg);
  const one = Math.max(2, width * 2.2 / SPAN);
  for (const point of points) {
    const x = width * (1 - (now - point.at) / SPAN) - one;
    if (x < -one) continue;
    let y = floor;
    for (const [name, count] of Object.entries(point.domains)) {
      const height = floor * count / Math.max(point.images, 1);
      y -= height;
      const bar = add(svg, "rect", { class: colour(Number(name)), x: x.toFixed(1),
        y: y.toFixed(1), width: one.toFixed(1), height: height.toFixed(1) });
      add(bar, "title", {}, `domain ${name}: ${count} images`);
    }
  }
}

export function lines(svg, points, now) {
  const { width, floor } = begin(svg);
  for (const [share, text] of [[1, "100 %"], [.5, "50 %"]]) {
    const y = 4 + (floor - 4) * (1 - share);
    add(svg, "line", { class: "axis", x1: 0, x2: width, y1: y, y2: y });
    add(svg, "text", { x: 2, y: y + 11 }, text);
  }
  for (const name of ["unknown", "differing", "trust"]) {
    let path = "", last = -Infinity;
    for (const point of points) {
      if (point[name] === null || now - point.at > SPAN) continue;
      const x = width * (1 - (now - point.at) / SPAN);
      const y = 4 + (floor - 4) * (1 - point[name]);
      path += `${point.at - last > 30 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
      last = point.at;
    }
    if (path) add(svg, "path", { class: `line ${name}`, d: path });
  }
}
