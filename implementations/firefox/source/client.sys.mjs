/**
 * The client of Firefox: the download manager fetches every URL of REQUESTS over HTTP/3, HTTP/2 or HTTP/1.1.
 *
 * Exit code 0 when every file has arrived completely, 1 otherwise.
 */

import { Downloads } from "resource://gre/modules/Downloads.sys.mjs";
import { NetUtil } from "resource://gre/modules/NetUtil.sys.mjs";

const CONTROLLERS = ["newreno", "cubic"]; // in the order of network.http.http3.cc_algorithm

/** The required protocol of a response, by TESTCASE. Default: h3. */
const PROTOCOLS = { h1: "http/1.1", h2: "h2" };
const protocol = PROTOCOLS[Services.env.get("TESTCASE")] ?? "h3";

/** No program listens on this port, so the request fails at once. */
const REFUSED = "https://127.0.0.1:2/";

const NETWORK_CHANGE = "network:link-status-changed";

export async function main() {
  Services.startup.enterLastWindowClosingSurvivalArea(); // otherwise Firefox would end, because it has no window
  let failures;
  try {
    failures = await run(Services.env.get("REQUESTS").split(" ").filter(Boolean));
  } catch (error) {
    failures = [error];
  }
  for (const failure of failures) {
    dump(`${failure}\n`);
  }
  Services.obs.notifyObservers(null, "net:prune-all-connections"); // otherwise the connections would not be closed
  Services.startup.quit(Ci.nsIAppStartup.eForceQuit, failures.length ? 1 : 0);
}

/** Fetch all files at once. Returns the errors. */
async function run(urls) {
  if (!urls.length) {
    return ["REQUESTS is empty"];
  }
  await trust("/certs/ca.pem");
  if (protocol === "h3") {
    const controller = CONTROLLERS[Services.prefs.getIntPref("network.http.http3.cc_algorithm")];
    dump(`applied: cca=${controller} iw=10\n`);
    await openAlternativeServices();
    ignoreNetworkChanges();
  }
  const outcomes = await Promise.allSettled(urls.map(fetchFile));
  return outcomes.filter((outcome) => outcome.status === "rejected").map((outcome) => outcome.reason);
}

/**
 * One second after its start, Firefox takes the addresses of its interfaces for a change of the network. Its HTTP code, which
 * observes such changes after the first request, would then replace each connection whose handshake has not ended.
 */
function ignoreNetworkChanges() {
  for (const observer of Services.obs.enumerateObservers(NETWORK_CHANGE)) {
    Services.obs.removeObserver(observer, NETWORK_CHANGE);
  }
}

async function trust(path) {
  const pem = await IOUtils.readUTF8(path);
  const database = Cc["@mozilla.org/security/x509certdb;1"].getService(Ci.nsIX509CertDB);
  database.addCertFromBase64(pem.replace(/-----[^-]+-----|\s/g, ""), "C,,");
}

/**
 * Make Firefox open its store of alternative services, which lists the servers with HTTP/3. Firefox opens the store during its
 * first request. This is too late for the first request itself, which would use TCP.
 */
function openAlternativeServices() {
  return new Promise((resolve) => NetUtil.asyncFetch({ uri: REFUSED, loadUsingSystemPrincipal: true }, resolve));
}

/** Save a file to /downloads. Throws when the file is incomplete, or came over another protocol than the required one. */
async function fetchFile(url) {
  const name = new URL(url).pathname.split("/").pop();
  let channel;
  const download = await Downloads.createDownload({
    source: {
      url,
      isPrivate: true,
      adjustChannel: async (opened) => {
        channel = opened.QueryInterface(Ci.nsIHttpChannel).QueryInterface(Ci.nsIHttpChannelInternal);
      },
    },
    target: { path: `/downloads/${name}` },
  });
  try {
    await download.start();
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
  if (channel.responseStatus !== 200 || channel.protocolVersion !== protocol) {
    throw new Error(`${name}: status ${channel.responseStatus} over ${channel.protocolVersion}`);
  }
}
