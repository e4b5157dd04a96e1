// What makes the pages live. Without it they work by links and forms alone.
//
// One event stream a page: a notice names the fragments that changed, and each is fetched and swapped. A fragment waits
// while text is selected in it. Open details, the focus and the place in a table stay as they are.

const here = document.body.dataset.here
const live = document.body.dataset.live
const status = document.querySelector("#status")

// Times ---------------------------------------------------------------------------------------------------

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]

function coarse(seconds) {
  const [unit, name] = UNITS.find(([unit]) => seconds >= unit) ?? UNITS.at(-1)
  return `${Math.floor(seconds / unit)} ${name}`
}

function relative(at, isSpan) {
  const left = (at - Date.now()) / 1000
  if (isSpan) return coarse(Math.abs(left))
  if (Math.abs(left) < 1) return "now"
  return left > 0 ? `in ${coarse(left)}` : `${coarse(-left)} ago`
}

function renewTimes(root = document) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const text = relative(Date.parse(time.dateTime), "since" in time.dataset)
    if (time.textContent !== text) time.textContent = text
  }
}

// Fragments -----------------------------------------------------------------------------------------------

const wanted = new Map()
let isFetching = false

function isInUse(place) {
  const selection = document.getSelection()
  return selection !== null && !selection.isCollapsed && place.contains(selection.anchorNode)
}

function swap(place, html, tag) {
  const open = [...place.querySelectorAll("details[open][id]")].map((one) => one.id)
  const active = place.contains(document.activeElement) ? document.activeElement : null
  const path = active && pathOf(active, place)
  const scrolled = [...place.querySelectorAll(".scroll")].map((one) => one.scrollLeft)
  place.innerHTML = html
  place.dataset.tag = tag
  for (const id of open) document.getElementById(id)?.setAttribute("open", "")
  place.querySelectorAll(".scroll").forEach((one, n) => { one.scrollLeft = scrolled[n] ?? 0 })
  if (path) find(path, place)?.focus({ preventScroll: true })
  prepare(place)
}

// An element by its id, or by what it leads to or sends: rows move, and the focus goes along.
function pathOf(element, place) {
  if (element.id) return `#${CSS.escape(element.id)}`
  for (const name of ["href", "formaction"]) {
    if (!element.hasAttribute(name)) continue
    const value = element.hasAttribute("value") ? `[value="${CSS.escape(element.getAttribute("value"))}"]` : ""
    return `[${name}="${CSS.escape(element.getAttribute(name))}"]${value}`
  }
  const parent = element.closest("[id]")
  return parent && place.contains(parent) ? `#${CSS.escape(parent.id)} ${element.localName}` : null
}

function find(path, place) {
  try { return place.querySelector(path) } catch { return null }
}

async function fetchWanted() {
  if (isFetching) return
  isFetching = true
  try {
    for (const [name, tag] of wanted) {
      const place = document.querySelector(`[data-fragment="${CSS.escape(name)}"]`)
      if (place === null || place.dataset.tag === tag) { wanted.delete(name); continue }
      if (document.hidden || isInUse(place)) continue
      wanted.delete(name)
      const url = new URL(here, location.href)
      url.searchParams.set("fragment", name)
      const answer = await fetch(url, { headers: { accept: "text/html" } })
      if (answer.status === 401) { location.reload(); return }
      if (answer.ok) swap(place, await answer.text(), answer.headers.get("x-fragment-tag") ?? tag)
      // The server is busy: the timer below asks again.
      else if (answer.status === 429 || answer.status === 503) { wanted.set(name, tag); break }
    }
  } catch {
    // The stream tells again what changed when it is back.
  } finally {
    isFetching = false
  }
}

function say(text, kind) {
  if (status === null) return
  status.textContent = text
  status.className = `status ${kind}`
}

function listen() {
  const stream = new EventSource(live)
  stream.addEventListener("open", () => say("live", "on"))
  stream.addEventListener("changed", (event) => {
    for (const [name, tag] of Object.entries(JSON.parse(event.data))) wanted.set(name, tag)
    fetchWanted()
  })
  stream.addEventListener("ended", () => { stream.close(); location.reload() })
  stream.addEventListener("error", () => {
    say("reconnecting", "off")
    // After a refusal a browser does not come back by itself.
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 15000)
  })
  addEventListener("pagehide", () => stream.close(), { once: true })
}

// Copying -------------------------------------------------------------------------------------------------

function prepare(root) {
  if (navigator.clipboard) for (const button of root.querySelectorAll("[data-copy]")) button.hidden = false
  renewTimes(root)
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]")
  if (button === null) {
    // A click elsewhere closes an open question.
    for (const one of document.querySelectorAll("details.confirm[open]")) {
      if (!one.contains(event.target)) one.removeAttribute("open")
    }
    return
  }
  await navigator.clipboard.writeText(button.dataset.copy)
  const label = button.textContent
  button.textContent = "Copied"
  setTimeout(() => { button.textContent = label }, 1500)
})

// Steps ---------------------------------------------------------------------------------------------------

// A long run is a form that takes one step and answers with the form of the next one. It begins with a click, never
// with an address alone; from then on each step sends the next, until the page is left.
document.addEventListener("submit", async (event) => {
  let form = event.target
  if (!("steps" in form.dataset)) return
  event.preventDefault()
  const main = document.querySelector("main")
  form.querySelector("button").disabled = true
  try {
    while (form !== null) {
      const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) })
      const page = new DOMParser().parseFromString(await answer.text(), "text/html")
      main.replaceChildren(...page.querySelector("main").children)
      if (answer.redirected) history.replaceState(null, "", answer.url)
      prepare(main)
      form = answer.ok ? main.querySelector("form[data-steps]") : null
      form?.querySelector("button").setAttribute("hidden", "")
    }
  } catch {
    // The server is gone, or the page is left: the button goes on from here.
    for (const button of main.querySelectorAll("form[data-steps] button")) { button.hidden = false; button.disabled = false }
  }
})

// Keyboard ------------------------------------------------------------------------------------------------

let isGoing = false

function step(by) {
  const rows = [...document.querySelectorAll("main a.row")]
  if (!rows.length) return
  const at = rows.indexOf(document.activeElement)
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))
  rows[next].focus()
  rows[next].closest("tr")?.scrollIntoView({ block: "nearest" })
}

// A chart that has the focus says the values of one time, which the pointer shows as a title.
function read(chart, by) {
  const strips = [...chart.querySelectorAll(".hover")].filter((one) => one.getClientRects().length)
  const at = strips.findIndex((one) => one.classList.contains("on"))
  strips[at]?.classList.remove("on")
  const next = strips[at < 0 ? strips.length - 1 : Math.max(0, Math.min(strips.length - 1, at + by))]
  next.classList.add("on")
  chart.querySelector("output").textContent = next.textContent
}

function search() {
  const field = document.querySelector("main input[type=search]")
  if (field !== null) { field.focus(); field.select(); return }
  const jobs = document.querySelector('nav a[data-search]')
  if (jobs !== null) location.assign(`${jobs.href}#search`)
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return
  if (event.key === "Escape") {
    for (const one of document.querySelectorAll("details.confirm[open]")) one.removeAttribute("open")
    if (event.target.matches("input")) event.target.blur()
    return
  }
  if (event.target.matches("input, select, textarea")) return
  const help = document.querySelector("#help")
  const link = isGoing ? document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`) : null
  isGoing = event.key === "g" && !isGoing
  const chart = event.target.closest("figure.values")
  if (link !== null) link.click()
  else if (chart !== null && event.key.startsWith("Arrow")) read(chart, /Left|Up/.test(event.key) ? -1 : 1)
  else if (event.key === "/") search()
  else if (event.key === "j") step(1)
  else if (event.key === "k") step(-1)
  else if (event.key === "?" && help !== null) { if (help.open) help.close(); else help.showModal() }
  else return
  event.preventDefault()
})

// On a phone the pages are in one line, and the current one may be far to the right.
document.querySelector(".side nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" })
prepare(document)
setInterval(() => { renewTimes(); if (wanted.size) fetchWanted() }, 1000)
if (live) {
  listen()
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload() })
}
if (location.hash === "#search") search()
