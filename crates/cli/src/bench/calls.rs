//! Hits: the time from encoded inputs to the id of the result in one process and over the socket, in turns with joblib's if it is installed;
//! beside few pins and beside very many; and a whole `repl run --cache` that is answered.

use super::figure::{Figure, Goal, percentile};
use super::plane::{Home, Plane, Setup};
use super::{Plan, bare};
use crate::complaint::{Complaint, Done};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;
use testkit::rehearsal::{Database, Rehearsal};
use wire::model::Failure;

/// Hits of one repeat.
const HITS: usize = 2_000;
const FEW: usize = 1_000;
const FILES: usize = 10;
const FILE_BYTES: usize = 10 << 10;
const COMMAND_GOAL_MS: f64 = 20.0;

/// joblib answers a call from its folder: reads a number of hits from stdin, and prints the median of each in microseconds.
const JOBLIB: &str = r#"
import sys, time, tempfile
from joblib import Memory
memory = Memory(tempfile.mkdtemp(dir=sys.argv[2]), verbose=0)
@memory.cache
def double(number): return number * 2
few = int(sys.argv[1])
for number in range(few): double(number)
print("ready", flush=True)
for line in sys.stdin:
    times = []
    for number in range(int(line)):
        began = time.perf_counter()
        double(number % few)
        times.append((time.perf_counter() - began) * 1e6)
    times.sort()
    print(times[len(times) // 2], flush=True)
"#;

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let many = plan.size(1_000_000);
    let (few_home, many_home) = (Home::new()?, Home::new()?);
    let few = pinned(&few_home, FEW).await?;
    eprintln!("repl: calls, {many} pins are made");
    let crowd = pinned(&many_home, many).await?;
    let mut peer = match &plan.joblib {
        Some(python) => Some(Joblib::start(python, few_home.path())?),
        None => {
            eprintln!("repl: joblib is not measured: --joblib PYTHON names a Python that has it (docs/performance.md)");
            None
        }
    };
    let mut found = Repeats::default();
    for _ in plan.repeats("calls") {
        found.few_us.push(hits(&few, FEW).await?);
        found.many_us.push(hits(&crowd, many).await?);
        if let Some(peer) = &mut peer {
            found.joblib_us.push(peer.hits(HITS)?);
        }
    }
    let bytes = |pins: &Rehearsal, from: usize| {
        let pins = pins.clone();
        async move {
            let mut all = Vec::new();
            for number in from..from + 100 {
                all.push(pins.bytes_of_a_pin(number).await.map_err(failed)? as f64);
            }
            Ok::<f64, Complaint>(all.iter().sum::<f64>() / all.len() as f64)
        }
    };
    found.few_bytes.push(bytes(&few, FEW).await?);
    found.many_bytes.push(bytes(&crowd, many).await?);
    let exec = few.exec_of(1).await.map_err(failed)?.ok_or_else(|| Complaint::refused("a pin is not there"))?;
    drop((few, crowd));
    let plane = Plane::start_in(few_home, &Setup { machines: 1, ..Setup::default() }).await?;
    let mut socket = Socket::open(&plane)?;
    for _ in plan.repeats("calls, over the socket") {
        found.socket_us.push(socket.hits(&format!("/api/v1/dag/object?of={exec}"), HITS)?);
        if let Some(peer) = &mut peer {
            found.joblib_beside_us.push(peer.hits(HITS)?);
        }
    }
    commands(plan, &plane, &mut found)?;
    Ok(found.figures(many))
}

fn failed(failure: Failure) -> Complaint {
    Complaint::refused(failure.to_string())
}

async fn pinned(home: &Home, count: usize) -> Done<Rehearsal> {
    let rehearsal = Rehearsal::open(home.path(), Database::File(home.database()), false).await.map_err(failed)?;
    rehearsal.pin_all(0, count).await.map_err(failed)?;
    Ok(rehearsal)
}

/// The median of many hits, in microseconds, spread over all pins.
async fn hits(pins: &Rehearsal, count: usize) -> Done<f64> {
    let mut times = Vec::with_capacity(HITS);
    for turn in 0..HITS {
        let number = (turn * 7_919) % count;
        let began = Instant::now();
        let result = pins.hit(number).await.map_err(failed)?;
        times.push(bare::ms(began) * 1e3);
        if result.is_none() {
            return Err(Complaint::refused(format!("call {number} is not answered")));
        }
    }
    Ok(percentile(&times, 0.5))
}

/// Commands that were executed once and are answered, each with its process.
fn commands(plan: &Plan, plane: &Plane, found: &mut Repeats) -> Done<()> {
    let folder = plane.home.path().join("project");
    let written = std::fs::create_dir_all(folder.join("data")).and_then(|()| {
        (0..FILES).try_for_each(|number| {
            std::fs::write(folder.join(format!("data/{number}")), vec![b'a' + number as u8; FILE_BYTES])
        })
    });
    written.map_err(|error| Complaint::file("write", &folder, &error))?;
    let run = || {
        let mut repl = Command::new(Plane::exe()?);
        repl.args(["run", "--cache", "--file", "data", "--", "wc", "-c", "data/0"]);
        repl.current_dir(&folder).env("REPL_HOME", plane.home.path()).env_remove("REPL_URL").stdin(Stdio::null());
        let began = Instant::now();
        let ended = repl.output().map_err(|error| Complaint::refused(format!("{repl:?}: {error}")))?;
        if !ended.status.success() || !ended.stdout.starts_with(b"10240") {
            return Err(Complaint::refused(format!("{repl:?}: {}", String::from_utf8_lossy(&ended.stderr))));
        }
        Ok((bare::ms(began), String::from_utf8_lossy(&ended.stderr).contains("cached from")))
    };
    run()?;
    for _ in plan.repeats("calls, repl run --cache") {
        let mut times = Vec::new();
        for _ in 0..plan.size(50).max(10) {
            let (took, hit) = run()?;
            times.push(took);
            if !hit {
                return Err(Complaint::refused("a run that was executed before is executed again"));
            }
        }
        found.command_ms.push(percentile(&times, 0.5));
    }
    Ok(())
}

#[derive(Default)]
struct Repeats {
    few_us: Vec<f64>,
    many_us: Vec<f64>,
    joblib_us: Vec<f64>,
    socket_us: Vec<f64>,
    joblib_beside_us: Vec<f64>,
    few_bytes: Vec<f64>,
    many_bytes: Vec<f64>,
    command_ms: Vec<f64>,
}

impl Repeats {
    fn figures(&self, many: usize) -> Vec<Figure> {
        let with_joblib = |figure: Figure, ours: &[f64], theirs: &[f64], goal: f64| match theirs.is_empty() {
            true => figure,
            false => figure.beside("joblib, warm", ours, theirs).goal(Goal::AtMost(goal)),
        };
        let hit = Figure::new("calls", "hit in one process, p50", "us", &self.few_us);
        let socket = Figure::new("calls", "object over the socket, p50", "us", &self.socket_us);
        vec![
            with_joblib(hit, &self.few_us, &self.joblib_us, 0.2),
            with_joblib(socket, &self.socket_us, &self.joblib_beside_us, 1.0),
            Figure::new("calls", format!("hit beside {many} pins, p50"), "us", &self.many_us)
                .beside(format!("beside {FEW}"), &self.many_us, &self.few_us)
                .goal(Goal::AtMost(2.0)),
            Figure::new("calls", format!("bytes of a pin beside {many}"), "B", &self.many_bytes)
                .beside(format!("beside {FEW}"), &self.many_bytes, &self.few_bytes)
                .goal(Goal::AtMost(3.0)),
            Figure::new("calls", "repl run --cache, answered, process start included", "ms", &self.command_ms)
                .goal(Goal::AtMost(COMMAND_GOAL_MS)),
        ]
    }
}

/// A plain client that keeps its connection.
struct Socket {
    stream: BufReader<UnixStream>,
    token: String,
}

impl Socket {
    fn open(plane: &Plane) -> Done<Socket> {
        let path = plane.client.base().trim_start_matches("unix:").to_owned();
        let failed = |error: std::io::Error| Complaint::file("connect to", Path::new(&path), &error);
        let token = plane.home.path().join("token");
        let token = std::fs::read_to_string(&token).map_err(|error| Complaint::file("read", &token, &error))?;
        Ok(Socket {
            stream: BufReader::new(UnixStream::connect(&path).map_err(failed)?),
            token: token.trim().to_owned(),
        })
    }

    /// The median of many requests, in microseconds.
    fn hits(&mut self, path: &str, count: usize) -> Done<f64> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n", self.token);
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            self.ask(&request).map_err(|error| Complaint::refused(format!("{path}: {error}")))?;
            times.push(bare::ms(began) * 1e3);
        }
        Ok(percentile(&times, 0.5))
    }

    fn ask(&mut self, request: &str) -> std::io::Result<()> {
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (mut line, mut length, mut first) = (String::new(), 0, true);
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let text = line.trim_end();
            if std::mem::take(&mut first) && !text.starts_with("HTTP/1.1 200") {
                return Err(std::io::Error::other(text.to_owned()));
            }
            match text.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().map_err(std::io::Error::other)?;
                }
                _ if text.is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)
    }
}

/// joblib in a Python of its own; it ends with its stdin.
struct Joblib {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Joblib {
    fn start(python: &Path, folder: &Path) -> Done<Joblib> {
        let mut command = Command::new(python);
        command.args(["-c", JOBLIB, &FEW.to_string()]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Complaint::file("start", python, &error))?;
        let (asks, answers) = (child.stdin.take(), child.stdout.take());
        let (asks, answers) = (asks.expect("it is piped"), BufReader::new(answers.expect("it is piped")));
        let mut joblib = Joblib { child, asks, answers };
        match joblib.line()?.as_str() {
            "ready" => Ok(joblib),
            other => Err(Complaint::refused(format!("joblib says `{other}`"))),
        }
    }

    fn line(&mut self) -> Done<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) | Err(_) => Err(Complaint::refused("joblib has ended")
                .fix("--joblib names the Python of a venv with `pip install joblib`")),
            Ok(_) => Ok(line.trim().to_owned()),
        }
    }

    /// The median of many hits, in microseconds.
    fn hits(&mut self, count: usize) -> Done<f64> {
        writeln!(self.asks, "{count}").map_err(|error| Complaint::refused(format!("joblib: {error}")))?;
        let said = self.line()?;
        said.parse().map_err(|_| Complaint::refused(format!("joblib says `{said}`")))
    }
}

impl Drop for Joblib {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
