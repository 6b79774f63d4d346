// The page: a chat whose answers show where each token came from. No library, nothing from elsewhere.
"use strict";

const $ = (id) => document.getElementById(id);
const messages = [];
let model = null;
let running = null; // what stops the answer under way

// ---- the server ----

async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const response = await fetch(path, { ...options, headers, signal });
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw new Error(told?.error?.message ?? `The server answered with status ${response.status}.`);
}

async function findModel() {
  try {
    const told = await (await call("v1/models")).json();
    model = told.data[0];
    const about = model.outrider;
    $("model").textContent =
      `${model.id} · drafter ${about.drafter} · verifier ${about.verifier}${about.lossless ? " (lossless)" : " (relaxed)"} · policy ${about.policy}`;
    $("drafter").replaceChildren(...about.drafters.map((name) => new Option(name, name)));
    $("max-tokens").max = about.max_tokens;
    $("alert").textContent = "";
  } catch (error) {
    $("model").textContent = error.message;
    setTimeout(findModel, 2000);
  }
}

// Server-sent events, one JSON document each; comments are what keeps the line open.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection was cut.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      if (part === "data: [DONE]") return;
      const document_ = JSON.parse(part.slice(6));
      if (document_.error) throw new Error(document_.error.message);
      yield document_;
    }
  }
}

// ---- an answer, made of rounds ----

class Answer {
  constructor(title) {
    this.element = document.createElement("article");
    const heading = document.createElement("h3");
    heading.textContent = title;
    this.text = document.createElement("div");
    this.text.className = "text";
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "group");
    this.text.setAttribute("aria-label", `${title}. Left and right arrow keys go from round to round.`);
    this.below = document.createElement("p");
    this.below.className = "own-figures";
    this.element.append(heading, this.text, this.below);
    this.rounds = [];
    this.content = "";
    this.place = -1;
    this.begun = performance.now();
    this.first = this.last = null;
    this.text.addEventListener("keydown", (event) => this.key(event));
    this.text.addEventListener("mouseover", (event) => {
      if (event.target.dataset.round) this.show(Number(event.target.dataset.round));
    });
  }

  take(chunk) {
    for (const choice of chunk.choices) {
      this.content += choice.delta.content ?? "";
      const round = choice.outrider?.round;
      if (!round) continue;
      this.last = performance.now();
      this.first ??= this.last;
      for (const [piece, origin] of round.spans) {
        const span = document.createElement("span");
        span.className = origin;
        span.textContent = piece;
        span.dataset.round = this.rounds.length;
        this.text.append(span);
      }
      this.rounds.push(round);
    }
  }

  // Everything is counted from the rounds.
  get figures() {
    const drafts = this.rounds.filter((round) => round.draft_tokens.length);
    const sum = (rounds, count) => rounds.reduce((total, round) => total + count(round), 0);
    const tokens = sum(this.rounds, (round) => round.tokens.length);
    const drafted = sum(drafts, (round) => round.draft_tokens.length);
    const later = tokens - (this.rounds[0]?.tokens.length ?? 0);
    const seconds = this.first === null ? 0 : (this.last - this.first) / 1000;
    return {
      tokens,
      length: drafts.length ? sum(drafts, (round) => round.tokens.length) / drafts.length : null,
      rate: drafted ? sum(drafts, (round) => round.path.length - 1) / drafted : null,
      speed: seconds > 0 ? later / seconds : null,
      first: this.first === null ? null : (this.first - this.begun) / 1000,
    };
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.rounds.length) return;
    event.preventDefault();
    this.show(Math.min(Math.max(this.place + step, 0), this.rounds.length - 1));
  }

  show(place) {
    for (const span of document.querySelectorAll(".here")) span.classList.remove("here");
    for (const span of this.text.querySelectorAll(`[data-round="${place}"]`)) span.classList.add("here");
    this.place = place;
    describe(this.rounds[place], place);
  }
}

function describe(round, place) {
  const kept = new Set(round.path);
  const line = document.createElement("p");
  line.append(round.draft_tokens.length ? "Drafted: " : "Nothing was drafted.");
  round.draft_texts.forEach((text, index) => {
    const piece = document.createElement(kept.has(index + 1) ? "span" : "s");
    piece.textContent = text;
    if (kept.has(index + 1)) piece.className = "accepted";
    else piece.setAttribute("aria-label", `rejected ${text}`);
    line.append(piece);
  });
  const accepted = round.path.length - 1;
  const own = round.tokens.length - accepted;
  const words = { corrected: "then the target’s correction", bonus: "then a bonus token", plain: "one token of the target’s own" };
  const after = own ? `, ${words[round.origins.at(-1)]}` : "";
  const told = round.draft_tokens.length ? `${accepted} of ${round.draft_tokens.length} accepted${after}.` : "";
  const times = `Drafting ${(round.draft_seconds * 1000).toFixed(1)} ms, checking ${(round.verify_seconds * 1000).toFixed(1)} ms.`;
  $("round").replaceChildren(`Round ${place + 1}. ${told} ${times}`, line);
}

function showFigures(answer) {
  const { tokens, length, rate, speed, first } = answer.figures;
  const put = (id, value, digits, unit = "") => {
    $(id).textContent = value === null ? "–" : value.toFixed(digits) + unit;
  };
  put("figure-length", length, 2);
  put("figure-rate", rate === null ? null : rate * 100, 0, " %");
  put("figure-speed", speed, 1);
  put("figure-first", first, 2);
  put("figure-tokens", tokens, 0);
  const parts = [`${tokens} tokens`];
  if (speed !== null) parts.push(`${speed.toFixed(1)} tokens/s`);
  if (length !== null) parts.push(`acceptance length ${length.toFixed(2)}`);
  answer.below.textContent = parts.join(" · ");
}

// ---- the conversation ----

function request(seed, extras) {
  return {
    model: model.id,
    messages,
    stream: true,
    temperature: Number($("temperature").value),
    max_tokens: Number($("max-tokens").value),
    seed,
    outrider: { trace: true, ...extras },
  };
}

async function write(answer, body, signal) {
  answer.text.setAttribute("aria-busy", "true");
  try {
    for await (const chunk of events(await call("v1/chat/completions", body, signal))) {
      answer.take(chunk);
      showFigures(answer);
    }
  } finally {
    answer.text.setAttribute("aria-busy", "false");
  }
}

function verdict(fast, slow) {
  const line = document.createElement("p");
  line.className = "verdict";
  const same = fast.content === slow.content ? "The same text, character by character." : "The texts DIFFER.";
  const [a, b] = [fast.figures.speed, slow.figures.speed];
  line.textContent = a && b ? `${(a / b).toFixed(2)} times as fast with speculation, in this one run. ${same}` : same;
  return line;
}

async function ask(text) {
  messages.push({ role: "user", content: text });
  const question = document.createElement("article");
  question.className = "user";
  const heading = document.createElement("h3");
  heading.textContent = "You";
  const words = document.createElement("div");
  words.className = "text";
  words.textContent = text;
  question.append(heading, words);
  $("log").append(question);

  const both = $("compare").checked;
  const seed = $("seed").value === "" ? Math.floor(Math.random() * 2 ** 32) : Number($("seed").value);
  const row = document.createElement("div");
  row.className = "answers";
  $("log").append(row);
  const extras = { drafter: $("drafter").value };
  if ($("policy").value) extras.policy = $("policy").value;
  const answer = new Answer(both ? "With speculation" : "Answer");
  row.append(answer.element);
  const body = request(seed, extras);
  await write(answer, body, running.signal);
  if (both) {
    const plain = new Answer("Speculation off");
    row.append(plain.element);
    await write(plain, { ...body, outrider: { trace: true, drafter: "none" } }, running.signal);
    const line = verdict(answer, plain);
    row.after(line);
    $("announce").textContent = line.textContent;
    showFigures(answer);
  } else {
    $("announce").textContent = `Answer: ${answer.content}`;
  }
  messages.push({ role: "assistant", content: answer.content });
}

async function submit() {
  const text = $("message").value.trim();
  if (!text || running || !model) return;
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  $("alert").textContent = "";
  $("message").value = "";
  const before = messages.length;
  try {
    await ask(text);
  } catch (error) {
    messages.length = before; // what did not get an answer is not part of the chat
    $("alert").textContent = error.name === "AbortError" ? "Stopped." : error.message;
    if (error.name !== "AbortError") $("message").value = text;
  } finally {
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
    $("message").focus();
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  running?.abort();
  messages.length = 0;
  $("log").replaceChildren();
  $("message").focus();
});
$("colours").addEventListener("change", () => document.body.classList.toggle("plain-text", !$("colours").checked));
$("key").addEventListener("change", findModel);
findModel();
