// The view in which one mask is mended: tools, strokes, zoom. What a tool does is the server's; the
// line that was drawn stays on the canvas until its answer is there.
(() => {
  const LINES = { more: "#2fbf5a", less: "#e03030", paint: "#ffffff", erase: "#000000", cut: "#ffffff" };
  let tool = "delete";
  let chosen = null; // the class that is painted, where it is not the image's main one
  let size = 3; // of the brush, in hundredths of the picture's width
  let tell = null;
  let image = null;
  let zoom = { scale: 1, x: 0, y: 0 };
  let points = [];
  let from = null; // where a move of the picture began
  let space = false;

  const part = (name) => document.getElementById(`mend-${name}`);

  function apply() {
    const sheet = part("sheet");
    if (sheet) sheet.style.transform = `translate(${zoom.x}px, ${zoom.y}px) scale(${zoom.scale})`;
  }

  function whole() {
    zoom = { scale: 1, x: 0, y: 0 };
    apply();
  }

  function choose(name) {
    tool = name;
    for (const button of document.querySelectorAll("#mend-view [data-tool]"))
      button.setAttribute("aria-pressed", String(button.dataset.tool === tool));
    part("stage").dataset.tool = tool;
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
    if (!LINES[tool] || !points.length) return;
    pen.strokeStyle = LINES[tool];
    pen.globalAlpha = 0.7;
    pen.lineCap = pen.lineJoin = "round";
    pen.lineWidth = tool === "cut" ? 3 : (size / 100) * canvas.width;
    pen.beginPath();
    for (const [x, y] of [points[0], ...points]) pen.lineTo(x * canvas.width, y * canvas.height);
    pen.stroke();
  }

  function finish() {
    if (!points.length) return;
    tell({
      act: "change",
      tool,
      points: points.map(([x, y]) => `${x.toFixed(5)},${y.toFixed(5)}`).join(" "),
      size: size / 100,
      class: part("class").value,
    });
    points = [];
  }

  function listen(stage) {
    stage.addEventListener("contextmenu", (event) => event.preventDefault());
    stage.addEventListener("pointerdown", (event) => {
      stage.setPointerCapture(event.pointerId);
      if (space || event.button !== 0) {
        from = { x: event.clientX - zoom.x, y: event.clientY - zoom.y };
        return;
      }
      points = [point(event)];
      draw();
    });
    stage.addEventListener("pointermove", (event) => {
      if (from) {
        zoom.x = event.clientX - from.x;
        zoom.y = event.clientY - from.y;
        return apply();
      }
      if (!points.length || !LINES[tool]) return;
      points.push(point(event));
      draw();
    });
    stage.addEventListener("pointerup", () => {
      if (from) from = null;
      else finish();
    });
    stage.addEventListener("pointercancel", () => {
      from = null;
      points = [];
      draw();
    });
    stage.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const box = stage.getBoundingClientRect();
        const scale = Math.min(20, Math.max(1, zoom.scale * 1.0015 ** -event.deltaY));
        const [x, y] = [event.clientX - box.left, event.clientY - box.top];
        // What is under the pointer stays there.
        zoom.x = x - ((x - zoom.x) * scale) / zoom.scale;
        zoom.y = y - ((y - zoom.y) * scale) / zoom.scale;
        zoom.scale = scale;
        if (scale === 1) zoom.x = zoom.y = 0;
        apply();
      },
      { passive: false },
    );
  }

  function open(view) {
    if (view.dataset.image !== image) {
      image = view.dataset.image;
      chosen = null;
      whole();
    }
    apply();
    choose(tool);
    resize(size);
    if (chosen !== null && [...part("class").options].some((one) => one.value === chosen))
      part("class").value = chosen;
    part("class").addEventListener("change", (event) => {
      chosen = event.target.value;
      event.target.blur();
    });
    part("size").addEventListener("input", (event) => resize(Number(event.target.value)));
    part("whole").addEventListener("click", whole);
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
      a: () => view.querySelector('[data-act="accept"]').click(),
      w: whole,
      "[": () => resize(size / 1.3),
      "]": () => resize(size * 1.3),
    };
    if (named) choose(named.dataset.tool);
    else keys[key]?.();
    if (named || keys[key]) event.preventDefault();
  });
  document.addEventListener("keyup", (event) => {
    if (event.key === " ") space = false;
  });

  window.deepffMend = (element, trigger) => {
    if (element.closest("#mend")) {
      tell = trigger;
      const view = element.querySelector("#mend-view");
      if (view) open(view);
      else image = null;
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
