// Open loop: RATE requests a second whatever the answers do; every answer is counted by its code, 0 for none.
import http from "k6/http";
import { Counter, Trend } from "k6/metrics";

const counters = Object.fromEntries(
  ["0", "200", "404", "408", "429", "500", "502", "503", "504"].map((code) => [code, new Counter(`code_${code}`)]),
);
const other = new Counter("code_other");
const answered = new Trend("answered_ms", true);
// 429 and 503: what is let in and comes too late (504) has waited for its deadline, and is counted by its code.
const refused = new Trend("refused_ms", true);
const open = {
  executor: "constant-arrival-rate",
  rate: Number(__ENV.RATE),
  timeUnit: "1s",
  duration: `${__ENV.SECONDS}s`,
  preAllocatedVUs: Number(__ENV.USERS),
  maxVUs: 4 * Number(__ENV.USERS),
  gracefulStop: "60s",
};
const closed = { executor: "constant-vus", vus: Number(__ENV.USERS), duration: `${__ENV.SECONDS}s`, gracefulStop: "60s" };

export const options = {
  discardResponseBodies: true,
  scenarios: { load: __ENV.RATE === "0" ? closed : open },
  summaryTrendStats: ["p(50)", "p(95)", "p(99)", "max"],
};

export default function () {
  const response = http.post(__ENV.URL, __ENV.BODY, { timeout: "60s", headers: { "Content-Type": "application/json" } });
  (counters[String(response.status)] || other).add(1);
  if (response.status === 200) answered.add(response.timings.duration);
  else if (response.status === 429 || response.status === 503) refused.add(response.timings.duration);
}

export function handleSummary(data) {
  return { [__ENV.SUMMARY]: JSON.stringify(data.metrics) };
}
