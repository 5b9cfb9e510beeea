"use strict";
{
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const data = JSON.parse($("#data").textContent);
  const between = (low, value, high) => Math.min(Math.max(value, low), high);

  for (const part of $$(".live")) part.removeAttribute("hidden");

  // ---- theme

  const themes = { "": "as the system", light: "light", dark: "dark" };
  $("#theme").addEventListener("click", () => {
    const names = Object.keys(themes);
    const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length];
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    $("#theme").textContent = `Theme: ${themes[next]}`;
  });

  // ---- explanations: every title, on hover and on focus

  const tip = $("#tip");
  const explain = (target, x, y) => {
    tip.textContent = target.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${between(6, x - box.width / 2, innerWidth - box.width - 6)}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(6, y - box.height - 12) : y + 18}px`;
    target.setAttribute("aria-describedby", "tip");
  };
  const silence = (target) => {
    tip.hidden = true;
    target?.removeAttribute("aria-describedby");
  };
  for (const target of $$("[title]")) {
    target.dataset.tip = target.getAttribute("title");
    target.removeAttribute("title");
  }
  const explained = (event) => event.target.closest?.("[data-tip]");
  document.addEventListener("mousemove", (event) => {
    const target = explained(event);
    if (target) explain(target, event.clientX, event.clientY);
    else if (!tip.hidden && !explained({ target: document.activeElement })) silence($("[aria-describedby=tip]"));
  });
  const below = (target) => {
    if (!target) return;
    const box = target.getBoundingClientRect();
    explain(target, box.left + box.width / 2, box.bottom - 10);
  };
  document.addEventListener("focusin", (event) => below(explained(event)));
  document.addEventListener("scroll", () => !tip.hidden && below(explained({ target: document.activeElement })));
  document.addEventListener("focusout", (event) => silence(explained(event)));
  document.addEventListener("keydown", (event) => event.key === "Escape" && silence($("[aria-describedby=tip]")));

  // ---- words

  const number = (value) => {
    const digits = Math.floor(Math.abs(value)).toString().length;
    const decimals = Math.abs(value) >= 1 ? Math.max(3 - digits, 0) : 2;
    return value ? value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }) : "0";
  };
  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const duration = (ns) => {
    if (!ns) return "0";
    const [size, unit] = UNITS.find(([s]) => ns >= s * 0.9995) ?? UNITS[3];
    return `${number(ns / size)} ${unit}`;
  };

  // ---- strip

  const WIDTH = 1e6;
  const NARROWEST = 200;
  const strip = () => {
    const { duration: total, start, name, stretches, names, causes, parts } = data.strip;
    const [root, view, axis] = [$("#strip"), $("#strip .view"), $("#strip .axis")];
    const [cursor, brush, readout] = [$(".cursor", view), $(".brush", view), $("#strip .readout")];
    const [before, after] = $$("#strip .outside");
    const end = (segment) => start[segment + 1] ?? total;
    let [left, width, chosen] = [0, WIDTH, 0];

    const set = (node, values) => Object.entries(values).forEach(([key, value]) => node.setAttribute(key, value));
    const ticks = () => {
      const span = (width / WIDTH) * total;
      const power = 10 ** Math.floor(Math.log10(span / 6));
      const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= span / 6);
      const first = Math.ceil(((left / WIDTH) * total) / step);
      const [size, unit] = UNITS.find(([s]) => total >= s) ?? UNITS[3];
      const decimals = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
      axis.replaceChildren();
      for (let tick = first; tick * step <= ((left + width) / WIDTH) * total; tick++) {
        const label = document.createElementNS("http://www.w3.org/2000/svg", "text");
        const at = (((tick * step) / total) * WIDTH - left) / width;
        set(label, { x: `${at * 100}%`, y: 14, "text-anchor": at < 0.02 ? "start" : at > 0.97 ? "end" : "middle" });
        label.textContent = tick ? `${((tick * step) / size).toFixed(decimals)} ${unit}` : "0";
        axis.append(label);
      }
    };
    const show = (from, size) => {
      width = between(NARROWEST, size, WIDTH);
      left = between(0, from, WIDTH - width);
      set(view, { viewBox: `${left} 0 ${width} 100` });
      set(before, { width: left });
      set(after, { x: left + width, width: WIDTH - left - width });
      ticks();
    };
    const zoom = (factor, around = left + width / 2) => show(around - (around - left) * factor, width * factor);
    const at = (place) => {
      const ns = (place / WIDTH) * total;
      let [low, high] = [0, start.length - 1];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (start[middle] <= ns) low = middle;
        else high = middle - 1;
      }
      return low;
    };
    const choose = (segment) => {
      chosen = between(0, segment, start.length - 1);
      const [from, to] = [start[chosen], end(chosen)];
      const mix = parts[chosen];
      const shares = [];
      for (let i = 0; i < mix.length; i += 2) {
        const share = mix[i + 1] < 995 ? ` ${number(mix[i + 1] / 10)} %` : "";
        shares.push(causes[mix[i]][1] + share);
      }
      const many = stretches[chosen] > 1 ? `, ${stretches[chosen].toLocaleString("en")} stretches, mostly` : ":";
      readout.textContent = `${duration(to - from)} at ${duration(from)}${many} ${names[name[chosen]]} — ${shares.join(", ")}`;
      set(cursor, { x: (from / total) * WIDTH, width: Math.max(((to - from) / total) * WIDTH, width / 1000) });
      cursor.removeAttribute("hidden");
    };
    const reveal = () => {
      const middle = ((start[chosen] + end(chosen)) / 2 / total) * WIDTH;
      if (middle < left || middle > left + width) show(middle - width / 2, width);
    };
    const place = (event) => {
      const box = view.getBoundingClientRect();
      return left + between(0, (event.clientX - box.left) / box.width, 1) * width;
    };

    let pressed = null;
    view.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      pressed = place(event);
      view.setPointerCapture(event.pointerId);
    });
    view.addEventListener("pointermove", (event) => {
      const now = place(event);
      choose(at(now));
      if (pressed === null) return;
      set(brush, { x: Math.min(pressed, now), width: Math.abs(now - pressed) });
      brush.removeAttribute("hidden");
    });
    const released = (event) => {
      if (pressed === null) return;
      const [from, to] = [pressed, place(event)].sort((a, b) => a - b);
      pressed = null;
      brush.setAttribute("hidden", "");
      if (event.type === "pointerup" && to - from > width / 200) show(from, to - from);
    };
    view.addEventListener("pointerup", released);
    view.addEventListener("pointercancel", released);
    view.addEventListener("dblclick", () => show(0, WIDTH));
    view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && !event.metaKey) return;
      event.preventDefault();
      zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, place(event));
    }, { passive: false });
    view.addEventListener("focus", () => choose(chosen));
    const middle = () => ((start[chosen] + end(chosen)) / 2 / total) * WIDTH;
    const moves = { in: () => zoom(0.5), out: () => zoom(2), left: () => show(left - width / 2, width), right: () => show(left + width / 2, width), all: () => show(0, WIDTH) };
    const keys = {
      ArrowLeft: () => (choose(chosen - 1), reveal()), ArrowRight: () => (choose(chosen + 1), reveal()),
      Home: () => (choose(0), reveal()), End: () => (choose(start.length - 1), reveal()),
      "+": () => zoom(0.5, middle()), "=": () => zoom(0.5, middle()), "-": () => zoom(2, middle()), 0: moves.all, Escape: moves.all,
    };
    view.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
    for (const button of $$("[data-zoom]", root)) button.addEventListener("click", moves[button.dataset.zoom]);
    readout.textContent = "Hover the strip, or focus it and use the arrow keys.";
  };

  // ---- ranks

  const ranks = () => {
    const { names, rows, tenths } = data.ranks;
    const [root, readout] = [$("#heat"), $("#heat .readout")];
    const cells = $$(".cells", root);
    let column = 0;
    const choose = (row, to) => {
      column = between(0, to, names.length - 1);
      for (const cell of cells) {
        const cursor = $(".cursor", cell);
        cursor.setAttribute("x", column);
        cursor.toggleAttribute("hidden", cell !== cells[row]);
      }
      const mean = tenths[row].reduce((sum, value) => sum + value, 0) / names.length;
      readout.textContent = `${names[column]}: ${rows[row]} ${(tenths[row][column] / 10).toFixed(1)} points; mean of all ${(mean / 10).toFixed(1)}`;
    };
    cells.forEach((cell, row) => {
      cell.addEventListener("pointermove", (event) => {
        const box = $("svg", cell).getBoundingClientRect();
        choose(row, Math.floor(((event.clientX - box.left) / box.width) * names.length));
      });
      cell.addEventListener("focus", () => choose(row, column));
      const focus = (other) => {
        cell.tabIndex = -1;
        cells[between(0, other, cells.length - 1)].tabIndex = 0;
        cells[between(0, other, cells.length - 1)].focus();
      };
      const keys = {
        ArrowLeft: () => choose(row, column - 1), ArrowRight: () => choose(row, column + 1),
        Home: () => choose(row, 0), End: () => choose(row, names.length - 1),
        ArrowUp: () => focus(row - 1), ArrowDown: () => focus(row + 1),
      };
      cell.addEventListener("keydown", (event) => {
        if (!keys[event.key]) return;
        event.preventDefault();
        keys[event.key]();
      });
    });
    readout.textContent = "Hover a cell, or focus a row and use the arrow keys.";
  };

  // ---- roofline: one stop for the tab key, arrows go from disc to disc

  const roofline = (discs) => {
    discs.forEach((disc, place) => {
      disc.addEventListener("keydown", (event) => {
        const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!move) return;
        event.preventDefault();
        disc.setAttribute("tabindex", "-1");
        const next = discs[between(0, place + move, discs.length - 1)];
        next.setAttribute("tabindex", "0");
        next.focus();
      });
      disc.dataset.tip = disc.getAttribute("aria-label");
      disc.addEventListener("click", () => reveal($(disc.getAttribute("href"))));
    });
  };

  // ---- kernel table

  const table = $("#kernel-table");
  const rows = table ? $$("tbody tr", table) : [];
  const everything = $("#all");
  const search = () => {
    const words = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = $("#kind").value;
    const filtered = words.length > 0 || kind !== "";
    const isAll = everything.getAttribute("aria-pressed") === "true";
    let found = 0;
    for (const row of $$("tbody tr", table)) {
      const fits = (!kind || row.dataset.kind === kind) && words.every((word) => row.dataset.words.includes(word));
      if (fits) found++;
      row.hidden = !fits || (!filtered && !isAll && found > Number(everything.dataset.shown));
    }
    $("#matches").textContent = filtered ? `${found} of ${rows.length}` : "";
  };
  const reveal = (row) => {
    if (row?.hidden) everything.click();
  };
  const sort = (button) => {
    const [head, column] = [button.closest("th"), Number(button.dataset.column)];
    const value = (row) => row.children[column].dataset.value ?? row.children[column].textContent;
    const isNumber = head.classList.contains("n");
    const falls = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : isNumber;
    const compare = isNumber ? (a, b) => Number(value(a)) - Number(value(b)) : (a, b) => value(a).localeCompare(value(b), "en");
    for (const other of $$("[aria-sort]", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    $("tbody", table).append(...[...rows].sort((a, b) => (falls ? compare(b, a) : compare(a, b))));
    search();
  };
  if (table) {
    for (const row of rows) row.dataset.words = `${row.textContent} ${$("th", row).dataset.tip}`.toLowerCase();
    for (const button of $$("thead button", table)) button.addEventListener("click", () => sort(button));
    $(".filters").addEventListener("submit", (event) => event.preventDefault());
    $("#filter").addEventListener("input", search);
    $("#kind").addEventListener("input", search);
    everything.hidden = rows.length <= Number(everything.dataset.shown);
    everything.addEventListener("click", () => {
      const isAll = everything.getAttribute("aria-pressed") !== "true";
      everything.setAttribute("aria-pressed", String(isAll));
      everything.textContent = isAll ? `Show the first ${everything.dataset.shown}` : `Show all ${rows.length}`;
      search();
    });
    search();
  }

  if (data.strip) strip();
  if (data.ranks) ranks();
  for (const plot of $$(".roofline")) roofline($$("a", plot));

  // ---- print: what is folded is shown

  addEventListener("beforeprint", () => {
    for (const part of $$("details:not([open])")) {
      part.open = true;
      part.dataset.folded = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const part of $$("details[data-folded]")) {
      part.open = false;
      delete part.dataset.folded;
    }
  });
}
