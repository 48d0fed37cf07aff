// Loads the page again when the runs on it have moved on. A reader who has just touched the page is asked first.
(() => {
  "use strict";
  const EVERY = 3000, UNTOUCHED = 30000; // milliseconds
  const shown = document.documentElement.dataset.state;
  const told = document.getElementById("live");
  let touched = 0;
  for (const kind of ["pointerdown", "keydown", "wheel", "touchstart"]) {
    addEventListener(kind, () => { touched = Date.now(); }, { passive: true });
  }
  document.getElementById("again").addEventListener("click", () => location.reload());
  async function look() {
    if (document.hidden) return;
    let state;
    try {
      const answer = await fetch(`/state${location.pathname === "/" ? "" : location.search}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(await answer.text());
      state = await answer.text();
    } catch (error) {
      told.textContent = `No news: ${error.message}`;
      told.parentElement.hidden = false;
      return;
    }
    if (state === shown) return;
    if (Date.now() - touched > UNTOUCHED) { location.reload(); return; }
    told.textContent = "There are new results.";
    told.parentElement.hidden = false;
  }
  setInterval(look, EVERY);
  addEventListener("visibilitychange", look);
})();
