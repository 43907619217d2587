"use strict";
// Asks now and then whether the run has gone on. The page is loaded anew at once, or on request while somebody reads conversations.
(() => {
  const known = document.currentScript.dataset.version;
  const seconds = 5;
  const bar = document.createElement("p");
  const button = document.createElement("button");
  bar.className = "news";
  bar.setAttribute("role", "status");
  button.type = "button";
  button.textContent = "The run has gone on: show it";
  button.addEventListener("click", () => location.reload());

  function reading() {
    const part = document.getElementById("conversations");
    const focused = document.activeElement && document.activeElement !== document.body;
    return Boolean(focused || (part && part.getBoundingClientRect().top < innerHeight / 2));
  }

  async function look() {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== known) {
        if (!reading()) return location.reload();
        if (!bar.isConnected) {
          bar.append(button);
          document.getElementById("head").append(bar);
        }
      }
    } catch {
      // the server has ended; the page stays as it is
    }
    setTimeout(look, 1000 * seconds);
  }

  setTimeout(look, 1000 * seconds);
})();
