// The view in which one mask is mended: tools, strokes, zoom. What a tool does is the server's; the
// line that was drawn stays on the canvas until its answer is there.
(() => {
  const LINES = { take: "#ffd000", paint: "#ffffff", erase: "#000000", cut: "#ffffff" };
  let tool = "take";
  let chosen = null; // the class that is painted
  let byHand = false; // whether somebody chose it, so that it stays for other images
  let earlier = []; // points that were clicked on this image, of which none changes by another click
  let size = 3; // of the brush, in hundredths of the picture's width
  let tell = null;
  let image = null;
  let zoom = { scale: 1, x: 0, y: 0 };
  let points = [];
  let from = null; // where a move of the picture began
  let down = null; // where a line or a box began, on the screen
  let space = false;
  let hover = null; // where the pointer is on the picture
  let cursor = null; // where arrow keys moved a cross on the picture, which Enter clicks
  let opacity = 100; // of the mask, in hundredths
  let hidden = false;
  let focused = null; // what has the focus in this view
  const touches = new Map(); // where fingers are
  let pinch = null; // how far apart two fingers are, and their middle

  const part = (name) => document.getElementById(`mend-${name}`);

  function apply() {
    const sheet = part("sheet");
    if (!sheet) return;
    part("mask").style.opacity = hidden ? 0 : opacity / 100;
    part("hide").setAttribute("aria-pressed", String(hidden));
    part("opacity").value = opacity;
    sheet.style.transform = `translate(${zoom.x}px, ${zoom.y}px) scale(${zoom.scale})`;
  }

  function hide() {
    hidden = !hidden;
    apply();
  }

  // What is under a point of the stage stays there.
  function zoomTo(scale, x, y) {
    scale = Math.min(20, Math.max(1, scale));
    x -= part("sheet").offsetLeft;
    y -= part("sheet").offsetTop;
    zoom.x = x - ((x - zoom.x) * scale) / zoom.scale;
    zoom.y = y - ((y - zoom.y) * scale) / zoom.scale;
    zoom.scale = scale;
    if (scale === 1) zoom.x = zoom.y = 0;
    apply();
  }

  function twoFingers() {
    const [[ax, ay], [bx, by]] = touches.values();
    return { apart: Math.hypot(ax - bx, ay - by), x: (ax + bx) / 2, y: (ay + by) / 2 };
  }

  // Everything on the page but this view, so all siblings of its ancestors, is out of reach.
  function closeOff(closed) {
    for (let here = document.getElementById("mend"); here && here !== document.body; here = here.parentElement)
      for (const other of here.parentElement.children)
        if (other !== here && other.id !== "overlay") other.toggleAttribute("inert", closed);
  }

  function whole() {
    zoom = { scale: 1, x: 0, y: 0 };
    apply();
  }

  function choose(name) {
    tool = name;
    for (const button of document.querySelectorAll("#mend-view button[data-tool]"))
      button.setAttribute("aria-pressed", String(button.dataset.tool === tool));
    part("stage").dataset.tool = tool;
  }

  function showClass() {
    for (const button of document.querySelectorAll("#mend-view [data-class]"))
      button.setAttribute("aria-pressed", String(button.dataset.class === part("class").value));
  }

  function chooseClass(name) {
    part("class").value = chosen = name;
    byHand = true;
    showClass();
  }

  function resize(to) {
    size = Math.min(20, Math.max(0.5, to));
    part("size").value = size;
  }

  function point(event) {
    const box = part("sheet").getBoundingClientRect();
    const share = (value) => Math.min(1, Math.max(0, value));
    return [share((event.clientX - box.left) / box.width), share((event.clientY - box.top) / box.height)];
  }

  function draw() {
    const canvas = part("canvas");
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    if (cursor) {
      const [x, y, arm] = [cursor[0] * canvas.width, cursor[1] * canvas.height, canvas.width / 40];
      for (const [color, width] of [["#000", 5], ["#fff", 2]]) {
        Object.assign(pen, { strokeStyle: color, lineWidth: width, globalAlpha: 1 });
        pen.stroke(new Path2D(`M${x - arm} ${y}h${2 * arm}M${x} ${y - arm}v${2 * arm}`));
      }
    }
    if (!LINES[tool] || !points.length) return;
    if (tool === "take" && points.length === 2) {
      const [[ax, ay], [bx, by]] = points;
      pen.strokeStyle = LINES.take;
      pen.lineWidth = 2;
      pen.strokeRect(ax * canvas.width, ay * canvas.height, (bx - ax) * canvas.width, (by - ay) * canvas.height);
      return;
    }
    pen.strokeStyle = LINES[tool];
    pen.globalAlpha = 0.7;
    pen.lineCap = pen.lineJoin = "round";
    pen.lineWidth = tool === "cut" ? 3 : (size / 100) * canvas.width;
    pen.beginPath();
    for (const [x, y] of [points[0], ...points]) pen.lineTo(x * canvas.width, y * canvas.height);
    pen.stroke();
  }

  const written = (some) => some.map(([x, y]) => `${x.toFixed(5)},${y.toFixed(5)}`).join(" ");

  function finish() {
    if (!points.length) return;
    tell({
      act: "change",
      tool,
      points: written(points),
      size: size / 100,
      earlier: tool === "take" ? written(earlier) : "",
      class: part("class").value,
    });
    if (tool === "take" && points.length === 1) earlier.push(points[0]);
    points = [];
  }

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function pointByKey(event) {
    const step = ARROWS[event.key]?.map((way) => way * (event.shiftKey ? 0.1 : 0.01));
    if (step) hover = cursor = (cursor ?? [0.5, 0.5]).map((at, axis) => Math.min(1, Math.max(0, at + step[axis])));
    else if (event.key === "Enter" && cursor) {
      points = [cursor];
      finish();
    } else return;
    event.preventDefault();
    draw();
  }

  function listen(stage) {
    stage.addEventListener("keydown", pointByKey);
    stage.addEventListener("contextmenu", (event) => event.preventDefault());
    stage.addEventListener("pointerdown", (event) => {
      stage.setPointerCapture(event.pointerId);
      if (event.pointerType === "touch") touches.set(event.pointerId, [event.clientX, event.clientY]);
      if (touches.size === 2) {
        points = [];
        draw();
        pinch = twoFingers();
      }
      if (pinch) return;
      if (space || event.button !== 0) {
        from = { x: event.clientX - zoom.x, y: event.clientY - zoom.y };
        return;
      }
      down = { x: event.clientX, y: event.clientY };
      cursor = null;
      points = [point(event)];
      draw();
    });
    stage.addEventListener("pointerleave", () => (hover = null));
    stage.addEventListener("pointermove", (event) => {
      hover = point(event);
      if (touches.has(event.pointerId)) touches.set(event.pointerId, [event.clientX, event.clientY]);
      if (pinch) {
        if (touches.size !== 2) return;
        const [now, box] = [twoFingers(), stage.getBoundingClientRect()];
        zoom.x += now.x - pinch.x;
        zoom.y += now.y - pinch.y;
        zoomTo((zoom.scale * now.apart) / pinch.apart, now.x - box.left, now.y - box.top);
        pinch = now;
        return;
      }
      if (from) {
        zoom.x = event.clientX - from.x;
        zoom.y = event.clientY - from.y;
        return apply();
      }
      if (!points.length || !LINES[tool]) return;
      // A box needs its corners alone, and to be larger than a hand's tremble.
      if (tool !== "take") points.push(point(event));
      else if (points.length === 2 || Math.hypot(event.clientX - down.x, event.clientY - down.y) > 8)
        points = [points[0], point(event)];
      draw();
    });
    stage.addEventListener("pointerup", (event) => {
      touches.delete(event.pointerId);
      if (pinch) pinch = touches.size ? pinch : null;
      else if (from) from = null;
      else finish();
    });
    stage.addEventListener("pointercancel", (event) => {
      touches.delete(event.pointerId);
      pinch = touches.size ? pinch : null;
      from = null;
      points = [];
      draw();
    });
    stage.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const box = stage.getBoundingClientRect();
        const [x, y] = [event.clientX - box.left, event.clientY - box.top];
        zoomTo(zoom.scale * 1.0015 ** -event.deltaY, x, y);
      },
      { passive: false },
    );
  }

  function open(view) {
    if (view.dataset.image !== image) {
      image = view.dataset.image;
      const has = [...part("class").options].some((one) => one.value === chosen);
      if (!byHand || !has) chosen = null;
      earlier = [];
      cursor = null;
      whole();
    }
    closeOff(true);
    (view.querySelector(focused) ?? part("stage")).focus({ preventScroll: true });
    apply();
    choose(tool);
    resize(size);
    // A class of which nothing is left anywhere is still the one that is painted.
    if (chosen && ![...part("class").options].some((one) => one.value === chosen))
      part("class").add(new Option(chosen));
    part("class").value = chosen ??= part("class").value;
    showClass();
    for (const button of view.querySelectorAll("[data-class]"))
      button.addEventListener("click", () => chooseClass(button.dataset.class));
    part("size").addEventListener("input", (event) => resize(Number(event.target.value)));
    part("whole").addEventListener("click", whole);
    part("hide").addEventListener("click", hide);
    part("opacity").addEventListener("input", (event) => {
      [opacity, hidden] = [Number(event.target.value), false];
      apply();
    });
    view.addEventListener("focusin", ({ target }) => {
      const { tool, act, class: name } = target.dataset;
      focused = target.id ? `#${target.id}` : tool ? `button[data-tool="${tool}"]` : name ? `[data-class="${CSS.escape(name)}"]` : `[data-act="${act}"]`;
    });
    view.querySelector('[data-act="undo"]').addEventListener("click", () => earlier.pop());
    for (const button of view.querySelectorAll("[data-tool]"))
      button.addEventListener("click", () => choose(button.dataset.tool));
    listen(part("stage"));
  }

  document.addEventListener("keydown", (event) => {
    const view = document.getElementById("mend-view");
    if (!view || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key === " ") {
      space = true;
      return event.preventDefault();
    }
    const named = view.querySelector(`[data-key="${CSS.escape(key)}"]`);
    const keys = {
      escape: () => view.querySelector('[data-act="leave"]').click(),
      u: () => view.querySelector('[data-act="undo"]').click(),
      r: () => view.querySelector('[data-act="redo"]').click(),
      h: hide,
      a: () => view.querySelector('[data-act="accept"]').click(),
      w: whole,
      "[": () => resize(size / 1.3),
      "]": () => resize(size * 1.3),
    };
    const number = event.code.match(/^(?:Digit|Numpad)([1-9])$/)?.[1];
    const name = view.querySelectorAll("[data-class]")[number - 1]?.dataset.class;
    if (name !== undefined && event.shiftKey) {
      if (hover) tell({ act: "change", tool: "class", points: written([hover]), class: name });
    } else if (name !== undefined) chooseClass(name);
    else if (named) choose(named.dataset.tool);
    else keys[key]?.();
    if (named || keys[key] || number) event.preventDefault();
  });
  document.addEventListener("keyup", (event) => {
    if (event.key === " ") space = false;
  });

  window.deepffMend = (element, trigger) => {
    if (element.closest("#mend")) {
      tell = trigger;
      const view = element.querySelector("#mend-view");
      if (view) open(view);
      else if (image !== null) {
        closeOff(false);
        document.querySelector(`.dff-mend[data-image="${image}"]`)?.focus({ preventScroll: true });
        image = focused = null;
      }
    }
    // The mask may come before or after the photograph.
    const mask = part("mask");
    const data = document.getElementById("overlay-data");
    if (mask && data && element.closest("#mend, #overlay")) {
      mask.src = data.dataset.picture;
      draw();
    }
  };
})();
