(() => {
  const data = JSON.parse(document.getElementById("episodes").textContent);
  const { pictures, actions, episodes } = data;
  const at = (id) => document.getElementById(id);
  const KEYS = "123456789abcdefghijklmoqrstuvwxyz"; // n and p are taken
  let episode = 0, step = 0, timer = null, busy = false;
  const frames = () => episodes[episode].frames;
  const show = (value, digits = 3) => value === null || value === undefined ? "–" : value.toFixed(digits);

  const buttons = actions.map((name, number) => {
    const button = document.createElement("button");
    button.type = "button";
    const [key, label, bars] = ["kbd", "span", "span"].map((tag) => document.createElement(tag));
    key.textContent = KEYS[number] ?? "";
    label.textContent = name;
    bars.className = "bars";
    button.append(key, label, bars);
    button.disabled = !data.live;
    button.addEventListener("click", () => send({ action: number }));
    at("actions").append(button);
    return { button, bars };
  });

  const draw = () => {
    const all = frames(), frame = all[step], next = all[step + 1];
    at("picture").src = frame.picture === null ? "data:," : typeof frame.picture === "number" ? pictures[frame.picture] : frame.picture;
    at("picture").hidden = frame.picture === null;
    at("caption").textContent = frame.caption;
    at("mission").textContent = frame.mission ? `Mission: ${frame.mission}` : "";
    const total = all.slice(0, step + 1).reduce((sum, one) => sum + (one.reward ?? 0), 0);
    const parts = [`reward ${show(frame.reward, 2)}`, `so far ${show(total, 2)}`];
    if (frame.phi !== null) parts.push(`Φ ${show(frame.phi)}`);
    if (frame.shaping !== null) parts.push(`γΦ' − Φ ${show(frame.shaping)}`);
    if (frame.end) parts.push(frame.end);
    at("paid").textContent = parts.join(" · ");
    at("place").textContent = `step ${step} of ${all.length - 1}${frame.action === null ? "" : `, after ${actions[frame.action]}`}`;
    buttons.forEach(({ button, bars }, number) => {
      button.classList.toggle("taken", Boolean(next) && next.action === number);
      const said = [];
      if (frame.advice) said.push(`advice ${show(frame.advice[number], 2)}`);
      if (frame.policy) said.push(`policy ${(100 * frame.policy[number]).toFixed(0)} %`);
      bars.textContent = said.join("   ");
    });
    at("step").max = all.length - 1;
    at("step").value = step;
    chart(all);
  };

  const chart = (all) => {
    const svg = at("chart"), known = all.every((one) => one.phi !== null) && all.length > 1;
    svg.toggleAttribute("hidden", !known);
    svg.style.display = known ? "" : "none";
    if (!known) return;
    const values = all.map((one) => one.phi), low = Math.min(...values), span = Math.max(...values) - low || 1;
    const x = (i) => (400 * i) / (all.length - 1);
    const make = (tag, given) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
      Object.entries(given).forEach(([name, value]) => node.setAttribute(name, value));
      return node;
    };
    const line = values.map((value, i) => `${x(i).toFixed(1)},${(75 - (70 * (value - low)) / span).toFixed(1)}`).join(" ");
    svg.replaceChildren(make("polyline", { points: line }), make("line", { x1: x(step), x2: x(step), y1: 0, y2: 80 }));
  };

  const go = (where) => { step = Math.max(0, Math.min(frames().length - 1, where)); draw(); };
  const choose = (number) => { episode = number; at("episode").value = number; go(0); };
  const names = () => at("episode").replaceChildren(...episodes.map((one, number) => {
    const option = document.createElement("option");
    option.value = number;
    option.textContent = one.name;
    return option;
  }));

  const send = async (asked) => {
    if (!data.live || busy) return false;
    busy = true;
    try {
      const reply = await fetch("/act", { method: "POST", headers: { "X-Bkrl-Key": data.key }, body: JSON.stringify(asked) });
      const said = await reply.json();
      at("problem").textContent = said.problem ?? "";
      if (said.problem) return false;
      if (said.name) {
        episodes.push({ name: said.name, frames: [said.frame] });
        names();
        choose(episodes.length - 1);
      } else {
        episode = episodes.length - 1;
        at("episode").value = episode;
        frames().push(said.frame);
        go(frames().length - 1);
      }
      return true;
    } catch {
      at("problem").textContent = "The server has gone; run bkrl play again.";
      return false;
    } finally { busy = false; }
  };
  const reset = () => send({ reset: at("seed").value.trim() });
  const run = async () => {
    const last = step === frames().length - 1;
    if (!last) go(step + 1);
    if (last && (!data.policy || frames()[step].end || !(await send({ policy: true })))) return stop();
    timer = setTimeout(run, 120);
  };
  const stop = () => { clearTimeout(timer); timer = null; at("run").textContent = "run"; };
  const toggle = () => { if (timer !== null) stop(); else { at("run").textContent = "stop"; timer = setTimeout(run, 0); } };

  at("back").addEventListener("click", () => go(step - 1));
  at("forth").addEventListener("click", () => go(step + 1));
  at("run").addEventListener("click", toggle);
  at("step").addEventListener("input", () => go(Number(at("step").value)));
  at("episode").addEventListener("change", () => choose(Number(at("episode").value)));
  if (data.live) {
    at("reset").addEventListener("click", reset);
    at("policy").addEventListener("click", () => send({ policy: true }));
  }
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select")) return;
    const number = KEYS.indexOf(event.key), deeds = {
      ArrowLeft: () => go(step - 1), ArrowRight: () => go(step + 1), " ": toggle,
      ...(data.live ? { n: reset, p: () => send({ policy: true }) } : {}),
    };
    const deed = deeds[event.key] ?? (data.live && number >= 0 && number < actions.length ? () => send({ action: number }) : null);
    if (!deed) return;
    event.preventDefault();
    deed();
  });
  const open = () => { // #e12s3 is step 3 of episode 12
    const wanted = /^#e(\d+)(?:s(\d+))?$/.exec(location.hash);
    const found = wanted ? episodes.findIndex((one) => one.number === Number(wanted[1])) : -1;
    choose(Math.max(found, 0));
    if (found >= 0) go(Number(wanted[2] ?? 0));
  };
  names();
  open();
  addEventListener("hashchange", open);
})();
