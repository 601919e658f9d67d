"use strict";
// Every two seconds: what has changed is put in place, section by section, so that nothing flickers.
async function refresh() {
  try {
    const answer = await fetch("/", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const main = document.querySelector("main"), parts = [...fresh.children];
    parts.forEach((part, place) => {
      const old = main.children[place];
      if (!old) main.append(part);
      else if (old.outerHTML !== part.outerHTML) old.replaceWith(part);
    });
    while (main.children.length > parts.length) main.lastElementChild.remove();
  } catch {
    document.getElementById("gone").hidden = false;
  }
  setTimeout(refresh, 2000);
}
setTimeout(refresh, 2000);
