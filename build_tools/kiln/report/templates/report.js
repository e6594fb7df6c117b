"use strict";
// The step tables' sorting and filtering, and the graph view. The page's data is JSON in #kiln-data.
(() => {
  const data = JSON.parse(document.getElementById("kiln-data").textContent);
  const make = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const count = (value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  const number = (value) => (value === null || value === undefined ? "" : String(Number(value.toPrecision(4))));

  // ---- tables: click a heading to sort, type to filter ----
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (!head.textContent.trim()) return;
      head.tabIndex = 0;
      head.setAttribute("aria-sort", "none");
      const sort = () => {
        const down = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
        const sign = head.getAttribute("aria-sort") === "none" && !head.classList.contains("n") ? 1 : down;
        heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
        const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        const rows = [...body.rows].map((row, at) => ({ row, at, key: key(row) }));
        const numeric = head.classList.contains("n");
        rows.sort((a, b) => {
          if (numeric) {
            const [x, y] = [a.key, b.key].map((text) => (text === "" ? NaN : Number(text.replace(/[^\d.eE+-]/g, ""))));
            if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.at - b.at;
            return sign * (x - y) || a.at - b.at;
          }
          return sign * a.key.localeCompare(b.key) || a.at - b.at;
        });
        body.append(...rows.map((one) => one.row));
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
      });
    });
    const field = document.querySelector(`input[data-filters="${table.id}"]`);
    const told = document.querySelector(`[data-counts="${table.id}"]`);
    if (!field) continue;
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      told.textContent = words.length ? `${shown} of ${body.rows.length} steps` : "";
    });
  }

  // ---- the graph: laid out by dagre when it is opened ----
  const WIDTH = 212, HEIGHT = 44;
  const SVG = document.querySelector("svg.arena, svg.graph")?.namespaceURI;
  const part = (tag, attributes, text) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

  // How far a node's value is, 0 to 1, for its colour; null: not known.
  const measures = {
    time: (node, most) => (node.time === null || node.time === undefined ? null : node.time / (most.time || 1)),
    arena: (node, most) => (node.port ? null : node.arena / (most.arena || 1)),
    operations: (node, most) => (node.port ? null : node.flops / (most.flops || 1)),
    error: (node) => {
      if (!node.error) return null;
      if (!node.error.passed) return 1;
      const ratio = node.error.limit ? node.error.error / node.error.limit : 0;
      return Math.min(ratio, 1) * 0.6;
    },
  };

  function facts(node) {
    const list = make("dl");
    const add = (name, value) => {
      if (value === "" || value === null || value === undefined || value.length === 0) return;
      list.append(make("dt", name));
      const cell = make("dd");
      for (const line of [].concat(value)) cell.append(make("div", line));
      list.append(cell);
    };
    const place = (one) => `${one.dtype} ${one.shape} · ${one.where}${one.bytes ? ` · ${count(one.bytes)} bytes` : ""}`;
    if (node.port) {
      add(node.port, node.shape);
      return list;
    }
    add("source node", node.nodes);
    add("source tensor", node.tensor);
    add("operators", node.ops.join(", "));
    add("attributes", node.detail);
    add("kernel", node.kernel);
    add("reads", node.reads.map(place));
    add("writes", node.writes.map(place));
    add("in the arena", node.arena ? `${count(node.arena)} bytes written` : "");
    add("parameters", node.params ? `${count(node.params)} bytes` : "");
    add("operations", node.flops ? count(node.flops) : "");
    add("time", node.time === null ? "" : `${number(node.time)} ${data.time_unit}, ${(100 * node.share).toFixed(1)} % of the run`);
    if (node.error) {
      const error = node.error;
      const words = error.error === null ? "not finite" : number(error.error);
      add("error", `${words}, allowed ${number(error.limit)}: ${error.passed ? "pass" : "FAIL"}`);
      add("signal to noise", error.snr_db === null ? "" : `${error.snr_db.toFixed(1)} dB`);
    }
    return list;
  }

  function draw(view, bucket) {
    const svg = view.querySelector("svg"), panel = view.querySelector(".facts");
    const layout = new dagre.graphlib.Graph();
    layout.setGraph({ rankdir: "TB", align: "UL", nodesep: 18, ranksep: 30, marginx: 12, marginy: 12 });
    layout.setDefaultEdgeLabel(() => ({}));
    for (const node of bucket.nodes) layout.setNode(node.id, { width: WIDTH, height: HEIGHT });
    for (const [from, to] of bucket.edges) layout.setEdge(from, to);
    dagre.layout(layout);
    const size = layout.graph();
    svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    svg.setAttribute("width", size.width);
    svg.setAttribute("height", size.height);
    svg.replaceChildren();
    for (const edge of layout.edges()) {
      const points = layout.edge(edge).points.map((p) => `${p.x.toFixed(1)},${p.y.toFixed(1)}`);
      svg.append(part("polyline", { class: "edge", points: points.join(" ") }));
    }
    const most = { time: 0, arena: 0, flops: 0 };
    for (const node of bucket.nodes) {
      for (const key of Object.keys(most)) most[key] = Math.max(most[key], node[key] || 0);
    }
    const drawn = new Map();
    for (const node of bucket.nodes) {
      const at = layout.node(node.id);
      const group = part("g", { class: `node ${node.port || "step"}`, tabindex: 0, role: "button",
        transform: `translate(${(at.x - WIDTH / 2).toFixed(1)} ${(at.y - HEIGHT / 2).toFixed(1)})` });
      const title = node.port ? `${node.port} ${node.label}` : `${node.step}  ${node.label}`;
      const under = node.port ? node.shape : node.nodes.join(" + ") || node.writes.map((w) => `${w.dtype} ${w.shape}`).join(", ");
      group.append(part("title", {}, `${title}\n${under}`), part("rect", { width: WIDTH, height: HEIGHT, rx: 6 }),
        part("text", { x: 9, y: 18 }, cut(title, 26)), part("text", { x: 9, y: 34, class: "under" }, cut(under, 31)));
      const choose = () => {
        svg.querySelector(".chosen")?.classList.remove("chosen");
        group.classList.add("chosen");
        const heading = make("h3", title);
        panel.replaceChildren(heading, facts(node));
        if (!node.port) {
          const link = make("a", "its row in the table of steps");
          link.href = `#${bucket.name}-${node.step}`;
          panel.append(link);
        }
      };
      group.addEventListener("click", choose);
      group.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); }
      });
      svg.append(group);
      drawn.set(node, group);
    }
    const paint = (name) => {
      for (const [node, group] of drawn) {
        const share = measures[name](node, most);
        const rect = group.querySelector("rect");
        group.classList.toggle("failed", name === "error" && !!node.error && !node.error.passed);
        rect.style.setProperty("--heat", share === null ? "0%" : `${Math.round(100 * share)}%`);
        rect.classList.toggle("unknown", share === null);
      }
    };
    const choice = view.querySelector("select");
    choice.addEventListener("change", () => paint(choice.value));
    paint(choice.value);
    const wrong = bucket.nodes.find((node) => node.error && !node.error.passed);
    const first = wrong || bucket.nodes.find((node) => !node.port);
    drawn.get(first)?.dispatchEvent(new MouseEvent("click"));
  }

  for (const view of document.querySelectorAll("details.graph-view")) {
    const bucket = data.buckets[Number(view.dataset.bucket)];
    let done = false;
    const open = () => {
      if (done || !view.open) return;
      done = true;
      draw(view, bucket);
    };
    view.addEventListener("toggle", open);
    open();
  }
})();
