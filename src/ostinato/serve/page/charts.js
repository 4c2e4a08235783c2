// Two figures as SVG: which domains images belonged to, and three shares over time.
const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 110, FOOT = 16, LEAST = 120, MOST = 900;

function add(parent, name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

export const colour = domain => (domain === 0 ? "d0" : `d${((domain - 1) % 8) + 1}`);

// Seconds that a figure reaches back: as far as there are points, within limits.
const reach = (points, now) => Math.min(MOST, Math.max(LEAST, points.length ? now - points[0].at : 0));

function begin(svg, span) {
  const width = Math.max(svg.clientWidth, 200);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.replaceChildren();
  const floor = HEIGHT - FOOT;
  add(svg, "line", { class: "axis", x1: 0, x2: width, y1: floor + .5, y2: floor + .5 });
  const step = span > 600 ? 300 : span > 240 ? 120 : 60;
  for (let back = 0; back <= span; back += step) {
    const x = width * (1 - back / span);
    const anchor = back === 0 ? "end" : x < 40 ? "start" : "middle";
    add(svg, "text", { x, y: HEIGHT - 3, "text-anchor": anchor },
      back ? `−${back / 60} min` : "now");
  }
  return { width, floor };
}

export function strip(svg, points, now) {
  const span = reach(points, now), { width, floor } = begin(svg, span);
  const one = Math.max(2, width * 2.2 / span);
  for (const point of points) {
    const x = width * (1 - (now - point.at) / span) - one;
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
  const span = reach(points, now), { width, floor } = begin(svg, span);
  for (const [share, text] of [[1, "100 %"], [.5, "50 %"]]) {
    const y = 4 + (floor - 4) * (1 - share);
    add(svg, "line", { class: "axis", x1: 0, x2: width, y1: y, y2: y });
    add(svg, "text", { x: 2, y: y + 11 }, text);
  }
  for (const name of ["unknown", "differing", "trust"]) {
    let path = "", last = -Infinity;
    for (const point of points) {
      if (point[name] === null || now - point.at > span) continue;
      const x = width * (1 - (now - point.at) / span);
      const y = 4 + (floor - 4) * (1 - point[name]);
      path += `${point.at - last > 30 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
      last = point.at;
    }
    if (path) add(svg, "path", { class: `line ${name}`, d: path });
  }
}
