#!/usr/bin/env python3
"""A provider of kind `exec`: each machine is a folder of this host with a runner in it (see docs/providers.md).
Started as: folder.py ROOT REPL VERB, with the question on stdin; answers with one line of JSON."""
import fcntl, json, os, re, shutil, signal, subprocess, sys, time

root, repl, verb, ask = sys.argv[1], sys.argv[2], sys.argv[3], json.load(sys.stdin)
name = ask.get("handle") or ask.get("name") or ""
home = os.path.join(root, name)

def answer(**it): print(json.dumps(it)); sys.exit()
def fail(kind, what): answer(error={"kind": kind, "what": what, "effect": "none"})
def has(machine, file): return os.path.exists(os.path.join(root, machine, file))
def boot(machine): return json.load(open(os.path.join(root, machine, "runner.json")))
def alive(machine):  # a runner holds its lock for as long as it lives
    if not has(machine, "runner.lock"): return False
    with open(os.path.join(root, machine, "runner.lock")) as lock:
        try: return fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB) is not None
        except OSError: return True
def ours(): return sorted(it for it in os.listdir(root) if has(it, "runner.json"))

if verb != "list" and not re.fullmatch(r"repl-[a-z0-9]+-[a-z0-9]+-[a-z0-9]+", name): fail("invalid_spec", "no machine of ours")
os.makedirs(root, exist_ok=True)
one_at_a_time = open(os.path.join(root, ".lock"), "w"); fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
known, ended = has(name, "runner.json"), has(name, "terminated")
stranger = known and "nonce" in ask and boot(name)["nonce"] != ask["nonce"]

if verb == "spawn":
    if ended: fail("not_found", name + " was terminated: a name is used once")
    if stranger: fail("not_found", name + " is another machine: left alone")
    if not known and sum(map(alive, ours())) >= ask["max_instances"]: fail("capacity", "no more machines are allowed")
    os.makedirs(home, mode=0o700, exist_ok=True)
    with open(os.open(home + "/runner.json", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file: json.dump(ask["boot"], file)
    if not alive(name):
        quiet = subprocess.DEVNULL
        if has(name, "runner.sock"): os.remove(home + "/runner.sock")
        subprocess.Popen([repl, "runner", "--dir", home], cwd=home, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, close_fds=True)
        for _ in range(1000):  # it listens once it has its lock
            if has(name, "runner.sock"): break
            time.sleep(0.01)
    answer(handle=name)
if verb == "find": answer(handle=name if known else None)
if verb == "inspect": answer(seen="gone" if ended or not known else "stranger" if stranger else "alive" if alive(name) else "runner_gone")
if verb == "list":
    state = lambda it: "ended" if has(it, "terminated") else "running" if alive(it) else "stopped"
    found = [it for it in ours() if it.startswith(ask["prefix"]) and it > (ask["after"] or "") and ask["region"] in (None, "here")]
    page = [dict(kind="instance", name=it, handle=it, nonce=boot(it)["nonce"], status=state(it), region="here") for it in found[:ask["limit"]]]
    answer(listed=page, next=page[-1]["name"] if len(found) > len(page) else None)
if verb == "terminate" and known and not ended:
    if stranger: fail("not_found", name + " is another machine: left alone")
    if alive(name):
        os.kill(int(open(home + "/runner.lock").read().split()[0]), signal.SIGKILL)
        while alive(name): time.sleep(0.01)
    subprocess.run([repl, "runner", "--dir", home, "--end"], check=True, stdout=sys.stderr)
    open(home + "/terminated", "w").close()
if verb == "remove_workdir" and known:
    if alive(name): fail("invalid_spec", "its runner is alive: its workdirs are its own to remove")
    shutil.rmtree(os.path.join(home, ask["workdir"]), ignore_errors=True)
if verb == "forget" and known:
    if not ended: fail("invalid_spec", name + " is not terminated: only what is gone is forgotten")
    shutil.rmtree(home)
answer()
