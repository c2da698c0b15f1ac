(function () {
  const SPACE = "http://www.w3.org/2000/svg";
  const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageDown: -0.1, PageUp: 0.1, Home: -Infinity, End: Infinity };

  function formatted(value, shares) {
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
    const element = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  }

  function reader(picture, box) {
    const readings = JSON.parse(picture.dataset.values);
    const [left, top, right, bottom] = readings.area;
    const series = readings.series.map((curve) => ({ places: readings.places, ...curve }));
    const places = readings.places || [...new Set(series.flatMap((curve) => curve.places))].sort((a, b) => a - b);
    const across = (place) => left + (right - left) * (place - readings.x[0]) / (readings.x[1] - readings.x[0]);
    const up = (value) => bottom - (bottom - top) * (value - readings.y[0]) / (readings.y[1] - readings.y[0]);
    const shown = added(picture, "g", { class: "reading" });
    const line = added(shown, "line", { y1: top, y2: bottom });
    let current = -1;

    // The index of a curve's own value near a place. A curve that ends earlier has none behind its end.
    function valueNear(curve, place) {
      if (!curve.places.length) return null;
      const found = nearest(curve.places, place);
      const gap = (curve.places[curve.places.length - 1] - curve.places[0]) / Math.max(1, curve.places.length - 1);
      return Math.abs(curve.places[found] - place) <= gap && curve.values[found] !== null ? found : null;
    }

    function show(number) {
      current = Math.max(0, Math.min(places.length - 1, number));
      const place = places[current], x = across(place);
      shown.querySelectorAll("circle").forEach((mark) => mark.remove());
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
      const head = document.createElement("b");
      head.textContent = `${readings.axis} ${formatted(place)}`;
      box.replaceChildren(head);
      for (const curve of series) {
        const found = valueNear(curve, place);
        if (found === null) continue;
        const value = curve.values[found];
        const row = document.createElement("span"), key = document.createElement("i");
        key.style.background = curve.colour;
        row.append(key, curve.label ? `${curve.label} ` : "", Object.assign(document.createElement("b"), { textContent: formatted(value, readings.shares) }));
        box.append(row);
        if (readings.marked) added(shown, "circle", { cx: across(curve.places[found]), cy: up(value), r: 3.2, style: `fill: ${curve.colour}` });
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
        const place = readings.x[0] + (readings.x[1] - readings.x[0]) * (x - left) / (right - left);
        if (places.length) show(nearest(places, place));
      },
      move(by) {
        const many = Math.abs(by) < 1 ? Math.sign(by) * Math.ceil(places.length * Math.abs(by)) : by;
        if (places.length) show(current < 0 && many !== -Infinity ? places.length - 1 : current + many);
      },
    };
  }

  document.querySelectorAll("svg[data-values]").forEach((picture) => {
    // A browser's own hint of the title would lie over the box.
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
    // Readers are made on first use, so that a page of many pictures appears at once.
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
