(function () {
  const section = document.getElementById("map");
  const picked = section.querySelector(".picked");
  const [query, answer, ranks] = picked.children;
  const pairs = [...section.querySelectorAll("g.pair")];
  // The box below shows them, without the delay of a browser's own hints.
  const texts = new Map(pairs.map((pair) => [pair, pair.querySelector("title").textContent.split("\n")]));
  pairs.forEach((pair) => pair.querySelector("title").remove());
  picked.hidden = false;
  const hasTexts = [...texts.values()].some(([left]) => left);
  const advice = `Point at a line, or tap it, to read its ${hasTexts ? "two texts" : "ranks"}.`;
  ranks.textContent = advice;

  let current = null;

  function pick(number) {
    if (number === current) return;
    current = number;
    const same = pairs.filter((pair) => pair.dataset.pair === number);
    pairs.forEach((pair) => pair.classList.toggle("on", same.includes(pair)));
    section.classList.toggle("picking", same.length > 0);
    const [left, right] = same.length ? texts.get(same[0]) : ["", ""];
    query.textContent = left;
    answer.textContent = right;
    ranks.textContent = same.length ? same.map((pair) => pair.dataset.rank).join(" before, ") + " after" : advice;
    // Drawn last, and so on top.
    same.forEach((pair) => pair.parentNode.append(pair));
  }

  section.querySelectorAll("svg.map").forEach((map) => {
    for (const kind of ["pointerover", "click"]) {
      map.addEventListener(kind, (event) => {
        const pair = event.target.closest("g.pair");
        if (pair) pick(pair.dataset.pair);
        else if (kind === "click") pick(null);
      });
    }
  });
})();
