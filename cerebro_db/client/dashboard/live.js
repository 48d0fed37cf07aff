// Loads the page again when the runs on it have moved on. A reader who uses the page is asked first.
(() => {
  "use strict";
  const EVERY = 3000, UNTOUCHED = 30000; // milliseconds
  const shown = document.documentElement.dataset.state;
  const told = document.getElementById("live"), notice = told.parentElement;
  const asked = `/state${location.pathname === "/" ? "" : location.search}`;
  let touched = 0, spent = 0;
  for (const kind of ["pointerdown", "keydown", "wheel", "touchstart"]) {
    addEventListener(kind, () => { touched = Date.now(); }, { passive: true });
  }
  document.getElementById("again").addEventListener("click", () => location.reload());
  // What a reload would lose: chosen runs, and what is written in a field.
  const fields = () => [...document.querySelectorAll("input")];
  const isUsed = () => fields().some((one) => (one.type === "checkbox" ? one.name === "run" && one.checked : one.value));
  function tell(text) { told.textContent = text; notice.hidden = text === ""; }
  async function look() {
    if (document.hidden) return;
    const began = Date.now();
    let state;
    try {
      const answer = await fetch(asked, { cache: "no-store" });
      state = await answer.text();
      if (!answer.ok) throw new Error(state);
    } catch (error) {
      tell(`No news: ${error.message}`);
      return;
    } finally {
      spent = Date.now() - began;
    }
    if (state === shown) tell("");
    else if (Date.now() - touched > UNTOUCHED && !isUsed()) location.reload();
    else tell("There are new results.");
  }
  // One question at a time, and the slower the answer, the fewer.
  async function again() { await look(); setTimeout(again, EVERY + 10 * spent); }
  setTimeout(again, EVERY);
})();
