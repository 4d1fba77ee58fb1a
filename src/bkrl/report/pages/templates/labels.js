(() => {
  const source = document.getElementById("head");
  const PER_PAGE = 20;

  // Keyboard: j and k go through the cards, whatever they are.
  const typing = (event) => event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey;
  const cards = () => [...document.querySelectorAll("#browse article")];
  const go = (turn) => {
    const all = cards();
    const at = all.findIndex((card) => card.contains(document.activeElement));
    const next = all[at < 0 ? (turn > 0 ? 0 : all.length - 1) : at + turn];
    if (!next) return false;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "start" });
    return true;
  };
  const open = () => {
    const card = document.activeElement.closest("#browse article");
    const all = card ? [...card.querySelectorAll("details")] : [];
    const opened = all.some((one) => one.open);
    all.forEach((one) => { one.open = !opened; });
  };
  const keys = { j: () => go(1), k: () => go(-1), o: open };
  addEventListener("keydown", (event) => {
    if (typing(event) || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  if (!source) return;

  // The data: texts by number, an index to filter and sort by, records in chunks that are read when they are shown.
  const head = JSON.parse(source.textContent);
  const { index, book, fields, actions, pictures } = head;
  const pairs = head.variant === "pref";
  const chunks = new Map();
  const record = (number) => {
    const chunk = Math.floor(number / head.chunk);
    if (!chunks.has(chunk)) chunks.set(chunk, JSON.parse(document.getElementById(`chunk-${chunk}`).textContent));
    return chunks.get(chunk)[number % head.chunk];
  };
  const text = (number) => book.texts[number].map((line) => book.lines[line]).join("\n");
  const exchange = (packed) => Object.fromEntries(fields.map((name, i) => [name, packed[i]]));

  // Elements are made, never parsed: what a model wrote stays text.
  const make = (tag, words = "", name = "") => {
    const node = document.createElement(tag);
    if (words !== "") node.textContent = words;
    if (name) node.className = name;
    return node;
  };
  const put = (node, ...children) => { node.append(...children.filter((child) => child !== null)); return node; };

  // Pictures: tiles from the atlas.
  const atlas = new Image();
  const tileOf = pictures ? new Map([...pictures.alphabet].map((character, i) => [character, i])) : null;
  let ready = false;
  const waiting = [];
  const draw = (canvas, view) => {
    const side = pictures.tile, context = canvas.getContext("2d");
    [...pictures.views[view]].forEach((character, i) => {
      const x = (i % pictures.columns) * side, y = Math.floor(i / pictures.columns) * side;
      context.drawImage(atlas, tileOf.get(character) * side, 0, side, side, x, y, side, side);
    });
  };
  if (pictures) {
    atlas.onload = () => { ready = true; waiting.splice(0).forEach(([canvas, view]) => draw(canvas, view)); };
    atlas.src = pictures.atlas;
  }
  const picture = (view) => {
    if (!pictures || view < 0) return null;
    const canvas = make("canvas", "", pictures.tile < 12 ? "coarse" : "");
    canvas.width = pictures.columns * pictures.tile;
    canvas.height = pictures.rows * pictures.tile;
    canvas.setAttribute("aria-hidden", "true"); // the caption beside it says the same
    if (ready) draw(canvas, view); else waiting.push([canvas, view]);
    return canvas;
  };

  const steps = (segment) => {
    const list = make("ol", "", "steps");
    for (const [view, caption, action] of segment) {
      const words = put(make("span"), make("span", book.lines[caption]), action >= 0 ? make("span", actions[action], "act") : null);
      list.append(put(make("li"), picture(view), words));
    }
    return list;
  };

  const figure = (value, digits) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits }));
  const spent = (one) => [
    `request ${one.id}`,
    book.lines[one.model] && `model ${book.lines[one.model]}`,
    one.sample ? `sample ${one.sample}` : "",
    one.status,
    one.reason || "",
    book.lines[one.finish] && `finish: ${book.lines[one.finish]}`,
    book.lines[one.format] && `answered as ${book.lines[one.format]}`,
    one.tokens_in !== null ? `${figure(one.tokens_in)} tokens in, ${figure(one.tokens_out)} out` : "",
    one.tokens_reasoning ? `${figure(one.tokens_reasoning)} of them reasoning` : "",
    one.cost !== null ? `$${figure(one.cost, 6)}` : "",
  ].filter(Boolean).join(" · ");
  const exchanges = (all) => {
    const place = make("div", "", "exchange");
    for (const packed of all) {
      const one = exchange(packed);
      place.append(make("h5", spent(one)));
      place.append(make("pre", one.reply === null ? "(no reply)" : one.reply, "reply"));
      const prompt = put(make("details"), make("summary", "Prompt"));
      prompt.addEventListener("toggle", () => {
        if (prompt.childElementCount > 1) return;
        for (const [role, words] of book.prompts[one.prompt]) prompt.append(make("h5", book.lines[role]), make("pre", text(words), "reply"));
      });
      place.append(prompt);
    }
    return place;
  };
  const later = (title, fill) => {
    const place = put(make("details"), make("summary", title));
    place.addEventListener("toggle", () => { if (place.childElementCount < 2) place.append(fill()); });
    return place;
  };

  const state = (number) => (index.status[number] === "labelled" ? null : make("small", index.status[number]));
  const verdict = (number) => {
    const label = index.label[number];
    if (label === null) return ["no label", null];
    if (label === 0.5) return [index.status[number] === "identical" ? "tie, read the same" : "tie", 0.5];
    const share = label > 0.5 ? label : 1 - label;
    return [`${label > 0.5 ? "A" : "B"} better${share < 1 ? `, ${figure(100 * share, 0)} %` : ""}`, label];
  };
  const against = (number) => {
    const label = index.label[number];
    if (label === null || label === 0.5) return { rules: false, gain: false };
    const rules = index.rules[number], gain = index.gain[number];
    return { rules: rules === "A" ? label < 0.5 : rules === "B" && label > 0.5, gain: gain !== 0 && (gain > 0) !== (label > 0.5) };
  };
  const said = (number) => (index.person[number] || []).filter(Boolean);
  const choice = (number) => { const label = index.label[number]; return label === null ? null : label === 0.5 ? "tie" : label > 0.5 ? "A" : "B"; };
  const disagreements = {
    differs: ["answers differ", (i) => index.differs[i]],
    biased: ["answer follows the position", (i) => index.biased[i]],
    rules: ["against the rules annotator", (i) => against(i).rules],
    gain: ["against the return", (i) => against(i).gain],
    person: ["against a person", (i) => said(i).some((one) => one !== choice(i))],
  };

  // Where a segment lies, as a link to its first step on the page of episodes.
  const place = (words) => {
    const [, episode, step] = /^episode (\d+), steps? (\d+)/.exec(words) ?? [];
    if (!head.episodes.numbers?.includes(Number(episode))) return make("span", ` ${words}`, "soft");
    const link = make("a", ` ${words}`, "soft");
    link.href = `${head.episodes.page}#e${episode}s${step}`;
    return link;
  };

  const pairCard = (number) => {
    const data = record(number), [words, label] = verdict(number);
    const card = make("article", "", "card item");
    const title = put(make("h3", `Pair ${index.id[number]}: ${words}`), state(number));
    for (const [name, test] of Object.values(disagreements)) if (test(number)) title.append(make("span", name, "flag"));
    const both = make("div", "", "pair");
    data.segments.forEach((segment, i) => {
      const better = label !== null && label !== 0.5 && (label > 0.5) === (i === 0);
      const heading = put(make("h4", "AB"[i]), better ? make("span", "preferred", "badge") : null, place(data.where[i]));
      both.append(put(make("div", "", better ? "better" : ""), heading, steps(segment)));
    });
    const notes = [
      index.agreement[number] !== null && data.votes.length > 1 ? `${figure(100 * index.agreement[number], 0)} % of the answers agree` : "",
      index.rules[number] ? `rules annotator: ${index.rules[number]}` : "",
      `return of A minus that of B: ${figure(index.gain[number], 3)}`,
      said(number).length ? `people: ${said(number).join(", ")}` : "",
      index.tokens[number] !== null ? `${figure(index.tokens[number])} tokens` : "",
      index.cost[number] !== null ? `$${figure(index.cost[number], 6)}` : "",
    ].filter(Boolean).join(" · ");
    put(card, title, both, make("p", notes, "soft"));
    if (data.votes.length) {
      card.append(later(`${data.votes.length} answer${data.votes.length > 1 ? "s" : ""}: prompts and replies`, () => {
        const place = make("div");
        for (const [swapped, sample, value, status, all] of data.votes) {
          // Of points, null: each segment is shown alone.
          const shown = swapped === null ? "" : `${swapped ? "B" : "A"} shown first${sample ? `, time ${sample + 1}` : ""}: `;
          place.append(make("h4", `${shown}${value === null ? status : value === "tie" ? "tie" : `${value} better`}`), exchanges(all));
        }
        return place;
      }));
    }
    return [card, title];
  };

  const goalCard = (number) => {
    const data = record(number);
    const card = make("article", "", "card item");
    const title = put(make("h3", `Moment ${index.id[number]}`), state(number));
    const chips = make("ul", "", "chips");
    for (const [goal, wordings] of data.goals) {
      const chip = make("li", book.lines[goal]);
      const others = [...new Set(wordings.filter((one) => one !== goal).map((one) => book.lines[one]))];
      if (others.length) chip.append(make("small", ` said: ${others.join("; ")}`));
      chips.append(chip);
    }
    put(card, title, put(make("p"), place(data.where[0])), steps(data.segments[0]), chips);
    const count = data.asked.length;
    if (count) card.append(later(`${count} answer${count > 1 ? "s" : ""}: prompts and replies`, () => put(make("div"), ...data.asked.map(exchanges))));
    return [card, title];
  };

  // What a search looks through: made for all records at the first search.
  let searchable = null;
  const searchText = (number) => {
    const data = record(number);
    const words = [`${pairs ? "pair" : "moment"} ${index.id[number]}:`, ...data.segments.flat().map(([, caption]) => book.lines[caption])];
    const asked = pairs ? data.votes.flatMap((vote) => vote[4]) : data.asked.flat();
    for (const packed of asked) words.push(exchange(packed).reply || "");
    for (const [goal, wordings] of data.goals || []) words.push(book.lines[goal], ...wordings.map((one) => book.lines[one]));
    return words.join("\n").toLowerCase();
  };

  const form = document.getElementById("filters"), list = document.getElementById("list");
  const told = document.getElementById("told");
  const count = index.id.length;
  let goal = null, shown = [], page = 0;

  const orders = {
    number: ["number", (i) => i],
    ...(pairs ? { agreement: ["least agreement first", (i) => index.agreement[i] ?? 2], label: ["A better first", (i) => -(index.label[i] ?? -1)] } : { goals: ["most goals first", (i) => -index.goals[i].length] }),
    ...(index.tokens.some((one) => one !== null) ? { tokens: ["most tokens first", (i) => -(index.tokens[i] ?? 0)] } : {}),
    ...(index.cost.some((one) => one !== null) ? { cost: ["dearest first", (i) => -(index.cost[i] ?? 0)] } : {}),
  };
  for (const [name, [words]] of Object.entries(orders)) form.elements.order.append(new Option(words, name));
  if (pairs) {
    for (const [name, [words, test]] of Object.entries(disagreements)) {
      const found = index.id.reduce((sum, _, i) => sum + (test(i) ? 1 : 0), 0);
      if (found) form.elements.disagreement.append(new Option(`${words} (${figure(found)})`, name));
    }
  }
  const labels = {
    a: (label) => label === 1, b: (label) => label === 0, tie: (label) => label === 0.5, none: (label) => label === null,
    mixed: (label) => label !== null && ![0, 0.5, 1].includes(label),
  };

  const choose = () => {
    const wanted = Object.fromEntries(new FormData(form));
    const query = wanted.text.trim().toLowerCase();
    if (query && !searchable) searchable = index.id.map((_, i) => searchText(i));
    shown = index.id.map((_, i) => i).filter((i) =>
      (!wanted.status || index.status[i] === wanted.status) &&
      (!wanted.label || labels[wanted.label](index.label[i])) &&
      (!wanted.disagreement || disagreements[wanted.disagreement][1](i)) &&
      (goal === null || index.goals[i].includes(goal)) &&
      (!query || searchable[i].includes(query)));
    const key = orders[wanted.order][1];
    shown.sort((a, b) => key(a) - key(b) || a - b);
    page = 0;
    render();
  };

  const render = () => {
    const pages = Math.max(1, Math.ceil(shown.length / PER_PAGE));
    const from = page * PER_PAGE, these = shown.slice(from, from + PER_PAGE);
    list.replaceChildren(...these.map((number) => {
      const [card, title] = pairs ? pairCard(number) : goalCard(number);
      title.id = `item-${index.id[number]}`;
      card.setAttribute("aria-labelledby", title.id);
      card.tabIndex = -1;
      return card;
    }));
    const what = pairs ? "pairs" : "moments";
    const only = goal === null ? "" : ` with the goal “${document.querySelector(`[data-goal="${goal}"]`).textContent}”`;
    told.textContent = shown.length ? `${figure(from + 1)} to ${figure(from + these.length)} of ${figure(shown.length)} ${what}${only}${shown.length < count ? `, ${figure(count)} in all` : ""}` : `None of ${figure(count)} ${what} is like that.`;
    document.getElementById("page").textContent = `Page ${figure(page + 1)} of ${figure(pages)}`;
    document.getElementById("back").disabled = page === 0;
    document.getElementById("on").disabled = page >= pages - 1;
  };

  const turn = (by) => {
    const pages = Math.ceil(shown.length / PER_PAGE);
    if (page + by < 0 || page + by >= pages) return;
    page += by;
    render();
    form.scrollIntoView({ block: "start" });
  };
  keys.n = () => turn(1);
  keys.p = () => turn(-1);
  keys["/"] = () => form.elements.text.focus();
  document.getElementById("back").addEventListener("click", () => turn(-1));
  document.getElementById("on").addEventListener("click", () => turn(1));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => { goal = null; setTimeout(choose); });
  form.addEventListener("change", choose);
  let typed = 0;
  form.elements.text.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(choose, 150); });
  for (const button of document.querySelectorAll("button.goal")) {
    button.addEventListener("click", () => {
      goal = Number(button.dataset.goal);
      choose();
      document.getElementById("browse").scrollIntoView();
    });
  }
  choose();
})();
