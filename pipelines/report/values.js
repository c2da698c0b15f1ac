(function () {
  const SPACE = "http://www.w3.org/2000/svg";
  const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageDown: -0.1, PageUp: 0.1, Home: -Infinity, End: Infinity };

  function said(value, shares) {
    if (shares) return `${(100 * value).toLocaleString("en", { maximumSignificantDigits: 3 })} %`;
    if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(2);
    const whole = Math.abs(value) >= 1000;
    return value.toLocaleString("en", whole ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 });
  }

  // The place in an ascending list that is nearest to a value.
  function nearest(places, value) {
    let low = 0, high = places.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (places[middle] < value) low = middle; else high = middle;
    }
    return value - places[low] <= places[high] - value ? low : high;
  }

  function added(parent, name, attributes) {
    const one = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    parent.append(one);
    return one;
  }

  function reader(picture, box) {
    const told = JSON.parse(picture.dataset.values);
    const [left, top, right, bottom] = told.area;
    const series = told.series.map((one) => ({ places: told.places, ...one }));
    const places = told.places || [...new Set(series.flatMap((one) => one.places))].sort((a, b) => a - b);
    const across = (place) => left + (right - left) * (place - told.x[0]) / (told.x[1] - told.x[0]);
    const up = (value) => bottom - (bottom - top) * (value - told.y[0]) / (told.y[1] - told.y[0]);
    const shown = added(picture, "g", { class: "reading" });
    const line = added(shown, "line", { y1: top, y2: bottom });
    let current = -1;

    // The number of a series' own value near a place. One that ends earlier has none behind its end.
    function valueNear(one, place) {
      if (!one.places.length) return null;
      const found = nearest(one.places, place);
      const gap = (one.places[one.places.length - 1] - one.places[0]) / Math.max(1, one.places.length - 1);
      return Math.abs(one.places[found] - place) <= gap && one.values[found] !== null ? found : null;
    }

    function show(number) {
      current = Math.max(0, Math.min(places.length - 1, number));
      const place = places[current], x = across(place);
      shown.querySelectorAll("circle").forEach((mark) => mark.remove());
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
      const head = document.createElement("b");
      head.textContent = `${told.axis} ${said(place)}`;
      box.replaceChildren(head);
      for (const one of series) {
        const found = valueNear(one, place);
        if (found === null) continue;
        const value = one.values[found];
        const row = document.createElement("span"), key = document.createElement("i");
        key.style.background = one.colour;
        row.append(key, one.label ? `${one.label} ` : "", Object.assign(document.createElement("b"), { textContent: said(value, told.shares) }));
        box.append(row);
        if (told.marked) added(shown, "circle", { cx: across(one.places[found]), cy: up(value), r: 3.2, style: `fill: ${one.colour}` });
      }
      box.hidden = false;
      shown.style.display = "";
      const scale = picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
      const isLeft = x < (left + right) / 2;
      box.style.left = isLeft ? `${x * scale + 10}px` : "";
      box.style.right = isLeft ? "" : `${(picture.viewBox.baseVal.width - x) * scale + 10}px`;
    }

    return {
      hide() { box.hidden = true; shown.style.display = "none"; },
      point(event) {
        const bounds = picture.getBoundingClientRect();
        const x = (event.clientX - bounds.left) / bounds.width * picture.viewBox.baseVal.width;
        const place = told.x[0] + (told.x[1] - told.x[0]) * (x - left) / (right - left);
        if (places.length) show(nearest(places, place));
      },
      move(by) {
        const many = Math.abs(by) < 1 ? Math.sign(by) * Math.ceil(places.length * Math.abs(by)) : by;
        if (places.length) show(current < 0 && many !== -Infinity ? places.length - 1 : current + many);
      },
    };
  }

  document.querySelectorAll("svg[data-values]").forEach((picture) => {
    // The box says more, and a browser's own hint would lie over it.
    const title = picture.querySelector("title");
    if (title) {
      picture.setAttribute("aria-description", `${title.textContent}. Arrow keys read its values.`);
      title.remove();
    }
    const frame = document.createElement("div"), box = document.createElement("div");
    frame.className = "pointed";
    box.className = "values";
    box.setAttribute("role", "status");
    box.hidden = true;
    picture.replaceWith(frame);
    frame.append(picture, box);
    picture.setAttribute("tabindex", "0");
    let made = null;
    // A page of many pictures is there before any of them is read.
    const read = () => (made = made || reader(picture, box));
    for (const kind of ["pointermove", "pointerdown"]) picture.addEventListener(kind, (event) => read().point(event));
    picture.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") read().hide(); });
    picture.addEventListener("blur", () => read().hide());
    document.addEventListener("pointerdown", (event) => { if (made && !frame.contains(event.target)) made.hide(); });
    picture.addEventListener("keydown", (event) => {
      if (event.key === "Escape") read().hide();
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      read().move(STEPS[event.key]);
    });
  });
})();
