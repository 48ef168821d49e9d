// What the page does by itself: the image that the keyboard acts on, the text in a field that is
// being typed in while the server redraws it, and the sign that pictures are old.
(() => {
  let current = 0; // position in the order of the images
  let moves = -1;
  let typing = null; // { factor, text, start, end }
  let send = null;
  let clicked = ""; // the id of the button that had the focus and was clicked last
  let waiting = 0; // answers that are still to come
  let pointer = { x: 0, y: 0 };

  const images = () => document.getElementById("images");
  const card = (position) => images()?.querySelector(`.dff-card[data-position="${position}"]`);

  function busy(change, most) {
    waiting = Math.max(0, Math.min(waiting + change, most ?? Infinity));
    document.body.classList.toggle("dff-waits", waiting > 0);
    document.getElementById("busy")?.toggleAttribute("hidden", waiting === 0);
  }

  function highlight(scroll) {
    for (const other of images()?.querySelectorAll(".dff-card.current") ?? [])
      other.classList.remove("current");
    const here = card(current);
    here?.classList.add("current");
    if (scroll) here?.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  // A button that is gone or disabled now hands the focus on.
  function refocus() {
    const next = { undo: "redo", redo: "undo", teach: "use-lesson", "use-lesson": "teach", "drop-lesson": "teach" };
    const button = document.getElementById(next[clicked]);
    if (!button || button.disabled || !document.activeElement.matches("body, :disabled")) return;
    button.focus({ preventScroll: true });
    clicked = "";
  }

  function redrawn(element) {
    if (element.querySelector(".dff-head")) busy(-1);
    refocus();
    const shown = element.querySelector("#images");
    if (shown) {
      const moved = shown.dataset.moves !== moves;
      if (moved || !card(current)) current = Number(shown.dataset.position);
      highlight(moved && moves !== -1);
      moves = shown.dataset.moves;
    }
    const rows = element.querySelector("#factor-rows");
    if (rows && typing) {
      const field = rows.querySelector(`input[data-factor="${typing.factor}"]`);
      if (!field) return;
      const { text, start, end } = typing;
      field.focus({ preventScroll: true });
      if (text !== null) field.value = text;
      field.setSelectionRange(start, end);
    }
  }

  function move(step) {
    const target = current + step;
    if (target < 0 || target >= Number(images().dataset.total)) return;
    if (card(target)) {
      current = target;
      highlight(true);
    } else {
      send({ act: "show", position: target });
    }
  }

  // The next image is at hand at once, for whoever is faster than the answers.
  function decide(button) {
    const goesOn = button?.dataset.on === "1";
    button?.click();
    if (goesOn && card(current + 1)) move(1);
  }

  // The piece under the pointer, or all that is marked in the current image, becomes a class.
  function moveTo(number) {
    const name = document.querySelectorAll("#class-rows [data-class]")[number - 1]?.dataset.class;
    const picture = document.querySelector(".dff-picture img:hover");
    const image = (picture?.closest(".dff-card") ?? card(current))?.dataset.image;
    if (name === undefined || image === undefined) return;
    let points = "";
    if (picture) {
      const box = picture.getBoundingClientRect();
      const [width, height] = [picture.naturalWidth, picture.naturalHeight];
      const scale = Math.min(box.width / width, box.height / height); // the box may be wider than it
      const share = (at, start, size, shown) => (at - start - (size - shown * scale) / 2) / (shown * scale);
      points = `${share(pointer.x, box.x, box.width, width)},${share(pointer.y, box.y, box.height, height)}`;
    }
    send({ act: "change", tool: "class", image, points, class: name });
  }

  const click = (selector) => document.querySelector(selector)?.click();

  function press(key, event) {
    const here = card(current);
    const keys = {
      u: () => click("#undo"),
      r: () => click("#redo"),
      y: () => click("#agree"),
      n: () => move(1),
      p: () => move(-1),
      arrowright: () => move(1),
      arrowleft: () => move(-1),
      pagedown: () => click("#next-page"),
      pageup: () => click("#previous-page"),
      // What was emptied by hand stays so: its button alone takes what the settings make.
      a: () => (here?.querySelector("[data-anew]") ? move(1) : decide(here?.querySelector(".dff-accept"))),
      x: () => decide(here?.querySelector(".dff-nothing")),
      s: () => decide(here?.querySelector(".dff-skip")),
      m: () => here?.querySelector(".dff-mend").click(),
      l: () => click("#teach"),
      t: () => here?.querySelector(".dff-take")?.click(),
      f: () => document.getElementById("filter").focus(),
      "/": () => document.getElementById("search").focus(),
    };
    if (keys[key]) {
      event.preventDefault();
      return keys[key]();
    }
    const number = event.code.match(/^(?:Digit|Numpad)([1-9])$/)?.[1];
    if (!number) return;
    event.preventDefault();
    if (event.shiftKey) moveTo(number);
    else here?.querySelector(`.dff-chip[data-class-key="${number}"]`)?.click();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !images()?.offsetParent) return;
    if (document.getElementById("mend-view")) return;
    const field = event.target.closest?.("input, textarea, select, [contenteditable]");
    const key = event.key.toLowerCase();
    if (key === "escape") return field?.blur();
    const moving = ["range", "radio"].includes(field?.type) && !key.startsWith("arrow");
    if (field && !moving && field.type !== "checkbox") return;
    press(key, event);
  });

  document.addEventListener("pointermove", ({ clientX: x, clientY: y }) => (pointer = { x, y }));

  // Gradio's fields, whose changes Gradio itself sends to the server.
  document.addEventListener("input", (event) => {
    const settings = event.target.closest?.("#settings");
    if (settings) busy(1, event.target.type === "range" ? 2 : undefined);
  });

  window.deepffAttach = (element, trigger, watch) => {
    const tell = (data) => {
      busy(1);
      trigger("act", { at: current, ...data });
    };
    const pick = (target) => {
      const holder = target.closest(".dff-card");
      if (!holder) return;
      current = Number(holder.dataset.position);
      highlight(false);
    };
    const act = (target, more) => {
      pick(target);
      clicked = document.activeElement === target ? target.id : "";
      tell({ ...target.dataset, ...more });
    };
    if (element.closest("#cards")) send = tell;
    element.addEventListener("click", (event) => {
      const target = event.target.closest("button[data-act]");
      if (target) act(target, {});
      else pick(event.target);
    });
    element.addEventListener("change", (event) => {
      const target = event.target.closest("input[data-act], select[data-act]");
      if (!target) return;
      if (target.matches("select, [type=range]")) target.blur();
      act(target, { text: target.value });
    });
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.matches("input[data-act]")) event.target.blur();
    });
    const remember = (event) => {
      const field = event.target.closest?.("#factor-rows input");
      if (!field) return;
      typing = {
        factor: field.dataset.factor,
        text: event.type === "input" ? field.value : null,
        start: field.selectionStart,
        end: field.selectionEnd,
      };
    };
    element.addEventListener("focusin", remember);
    element.addEventListener("input", remember);
    // Not while it is redrawn, when the field is taken away from under the cursor.
    element.addEventListener("focusout", (event) => {
      if (event.target.isConnected) typing = null;
    });
    const drawn = () => {
      redrawn(element);
      window.deepffMend?.(element, tell);
    };
    watch("value", drawn);
    drawn();
  };
})();
