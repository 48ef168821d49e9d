// What the page does by itself: the image that the keyboard acts on, and the text in a field that
// is being typed in while the server redraws it. All else is the server's.
(() => {
  let current = 0; // position in the order of the images
  let moves = -1;
  let typing = null; // { factor, text, start, end }
  let send = null;

  const images = () => document.getElementById("images");
  const card = (position) => images()?.querySelector(`.dff-card[data-position="${position}"]`);

  function highlight(scroll) {
    for (const other of images()?.querySelectorAll(".dff-card.current") ?? [])
      other.classList.remove("current");
    const here = card(current);
    here?.classList.add("current");
    if (scroll) here?.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  function redrawn(element) {
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

  function press(key) {
    const here = card(current);
    if (key === "u") return document.getElementById("undo")?.click();
    if (key === "arrowright" || key === "n") return move(1);
    if (key === "arrowleft" || key === "p") return move(-1);
    if (key === "a") return here?.querySelector(".dff-accept").click();
    if (key === "s") return here?.querySelector(".dff-skip").click();
    if (/^[0-9]$/.test(key)) here?.querySelector(`.dff-chip[data-factors~="${key}"]`)?.click();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !images()?.offsetParent) return;
    const field = event.target.closest?.("input, textarea, select, [contenteditable]");
    const key = event.key.toLowerCase();
    const moving = ["range", "radio"].includes(field?.type) && !key.startsWith("arrow");
    if (field && !moving && field.type !== "checkbox") return;
    press(key);
  });

  window.deepffAttach = (element, trigger, watch) => {
    if (!send) send = null;
    const act = (target, more) => {
      const holder = target.closest(".dff-card");
      if (holder) {
        current = Number(holder.dataset.position);
        highlight(false);
      }
      trigger("act", { at: current, ...target.dataset, ...more });
    };
    if (element.closest("#cards")) send = (data) => trigger("act", { at: current, ...data });
    element.addEventListener("click", (event) => {
      const target = event.target.closest("button[data-act]");
      if (target) return act(target, {});
      const holder = event.target.closest(".dff-card");
      if (holder) {
        current = Number(holder.dataset.position);
        highlight(false);
      }
    });
    element.addEventListener("change", (event) => {
      const target = event.target.closest("input[data-act]");
      if (target) act(target, { text: target.value });
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
    watch("value", () => redrawn(element));
    redrawn(element);
  };
})();
