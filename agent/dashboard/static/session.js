// Where the network can reach the dashboard: a token is asked for once, and the browser gets a cookie for it, which no script
// can read.

import { byId, setText } from "./pieces.js";

const form = byId("session-form");

// Whether a token has to be shown first; where nobody answers that is not known.
export async function needsToken() {
  try {
    const response = await fetch("/api/session", { signal: AbortSignal.timeout(3000) });
    return (await response.json()).needed === true;
  } catch {
    return false;
  }
}

export function askForToken(then) {
  byId("session").hidden = false;
  form.onsubmit = async (event) => {
    event.preventDefault();
    try {
      const headers = { Authorization: `Bearer ${byId("session-token").value.trim()}` };
      const response = await fetch("/api/session", { method: "POST", headers, signal: AbortSignal.timeout(10000) });
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.error);
      byId("session-token").value = "";
      byId("session").hidden = true;
      then();
    } catch (error) {
      setText(byId("session-said"), error.message);
    }
  };
}
