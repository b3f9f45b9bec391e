//! The keys of a run file: what each may hold, what it means, what holds without it. The JSON schema (`repl
//! schema task`) and the tables of `docs/run-files.md` are made from it; tests compare it with the reader, value by value.

/// One key.
#[derive(Debug, PartialEq)]
pub struct Key {
    pub name: &'static str,
    pub value: Value,
    /// One sentence or more, for editors and for the manual.
    pub about: &'static str,
    /// What holds where the key is missing.
    pub default: &'static str,
    /// A value as it is written in YAML.
    pub example: &'static str,
    /// The flag of `repl run` that says the same, if there is one.
    pub flag: Option<&'static str>,
}

/// What a key may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// The kind of run; must be there.
    Type,
    Name,
    Text,
    /// A list of texts, or one.
    Texts,
    /// `NAME: value`, or a list of `NAME=value` and `NAME`.
    Variables,
    Duration,
    Memory,
    Cpu,
    Gpu,
    Credits,
    OneOf(&'static [&'static str]),
    /// A list of such words, or one.
    SomeOf(&'static [&'static str]),
    Flag,
    /// A number of attempts.
    Attempts,
    /// A number of attempts, or keys of its own.
    Retry(&'static [Key]),
    /// `true`, `false`, or keys of its own.
    Sandbox(&'static [Key]),
    /// The same.
    Cache(&'static [Key]),
    Inner(&'static [Key]),
}

pub const TASK: &[Key] = &[
    Key {
        name: "type",
        value: Value::Type,
        about: "The kind of run. A task runs its commands once, to their end. The steps of an external run are begun by a program of yours, elsewhere (`repl step --run RUN`), and `repl finish` ends it.",
        default: "must be written",
        example: "task",
        flag: None,
    },
    Key {
        name: "name",
        value: Value::Name,
        about: "A name to find the run by. Unique among open runs; 1 to 63 letters, digits, `-`, `_` or `.`, beginning with a letter or digit.",
        default: "a name is made up",
        example: "train",
        flag: Some("--name"),
    },
    Key {
        name: "commands",
        value: Value::Texts,
        about: "What to run: each entry is a line for `sh`. They run in order in one shell, so that `cd` and `export` last; the first that fails ends the run with its exit code.",
        default: "needed, here or as `-c` or `--` on the command line",
        example: "[python3 train.py, python3 evaluate.py]",
        flag: Some("-c"),
    },
    Key {
        name: "files",
        value: Value::Texts,
        about: "Files and folders to send, as `PATH` or `PATH:DEST`, seen from the folder of the run file. Of a folder, what `.gitignore` names is left out.",
        default: "none",
        example: "[train.py, src, 'data/small.csv:input.csv']",
        flag: Some("--file"),
    },
    Key {
        name: "artifacts",
        value: Value::Texts,
        about: "Patterns of files to keep when the run has ended, whatever its outcome; seen from its folder. `*` does not cross a `/`, `**` does.",
        default: "none",
        example: "['out/**', metrics.json]",
        flag: Some("--artifact"),
    },
    Key {
        name: "working_dir",
        value: Value::Text,
        about: "Folder below the run's own in which the commands start. One that no file is sent into is made, empty; `repl run` says so.",
        default: "the run's own folder",
        example: "src",
        flag: Some("--workdir"),
    },
    Key {
        name: "env",
        value: Value::Variables,
        about: "Variables for the run. In the list, a `NAME` alone has the value that it has where the run is submitted. Names beginning with `REPL_` are reserved.",
        default: "none",
        example: "{EPOCHS: 3, MODE: fast}",
        flag: Some("--env"),
    },
    Key {
        name: "secrets",
        value: Value::Texts,
        about: "Secrets (`repl secret set NAME`) that the run gets as variables of the same name. Their values are masked in its output.",
        default: "none",
        example: "[HF_TOKEN]",
        flag: Some("--secret"),
    },
    Key {
        name: "resources",
        value: Value::Inner(RESOURCES),
        about: "What the run may use. `cpu` and `memory` are limits, enforced where the machine's kernel allows it (`repl doctor` says whether).",
        default: "the whole machine",
        example: "{cpu: 2, memory: 4GB}",
        flag: None,
    },
    Key {
        name: "provider",
        value: Value::Text,
        about: "Where its machine comes from: a provider of `repl provider ls`. One that costs money is taken only if it is named, here, by the flag or in `[run] providers` of the settings, which names several that are tried in order.",
        default: "`local`: processes on the host of the control plane",
        example: "local",
        flag: Some("--provider"),
    },
    Key {
        name: "region",
        value: Value::Text,
        about: "Region of the provider.",
        default: "the cheapest; where it has no machine, the next",
        example: "local",
        flag: Some("--region"),
    },
    Key {
        name: "spot",
        value: Value::Flag,
        about: "A machine that may be taken away at any time will do: spot machines in the two cheapest regions are tried first, then an ordinary one.",
        default: "`false`",
        example: "true",
        flag: Some("--spot"),
    },
    Key {
        name: "max_duration",
        value: Value::Duration,
        about: "Longest time the work may take in one attempt. Then it is asked to stop, the run fails, and `repl run` exits with 124.",
        default: "24 h",
        example: "2h30m",
        flag: Some("--max-duration"),
    },
    Key {
        name: "stop_duration",
        value: Value::Duration,
        about: "Time between SIGTERM, by which the work is asked to stop, and SIGKILL.",
        default: "10 s",
        example: "30s",
        flag: Some("--stop-duration"),
    },
    Key {
        name: "hold",
        value: Value::Duration,
        about: "How long the run's folder is kept on its machine afterwards, from `0s` to `24h`. `repl extend` makes it longer, `repl release` ends it.",
        default: "5 min after success, 15 min after a failure",
        example: "1h",
        flag: Some("--hold"),
    },
    Key {
        name: "retry",
        value: Value::Retry(RETRY),
        about: "How often to try, the first attempt included. A number means after errors and interruptions; a map says after what.",
        default: "one attempt; `repl retry` makes up to 3",
        example: "3",
        flag: Some("--retry"),
    },
    Key {
        name: "budget",
        value: Value::Credits,
        about: "Most the run may cost over all its attempts. A run that would exceed it is stopped.",
        default: "what the organisation has",
        example: "2.5",
        flag: Some("--budget"),
    },
    Key {
        name: "priority",
        value: Value::OneOf(&["high", "normal"]),
        about: "Which runs go first when several wait for machines.",
        default: "`normal`",
        example: "high",
        flag: Some("--priority"),
    },
    Key {
        name: "merge",
        value: Value::Flag,
        about: "One stream for stdout and stderr, in their exact order.",
        default: "`false`",
        example: "true",
        flag: Some("--merge"),
    },
    Key {
        name: "sandbox",
        value: Value::Sandbox(SANDBOX),
        about: "Whether the commands run in a sandbox, where they see no files of yours but their own ([sandbox.md](sandbox.md)). A map says which network they have.",
        default: "as the provider's settings say, `false` without any",
        example: "true",
        flag: Some("--sandbox"),
    },
    Key {
        name: "cache",
        value: Value::Cache(CACHE),
        about: "Whether the kept result of an earlier run with the same command, files, variables and machine answers this one, and this one's result later ones ([calls.md](calls.md)).",
        default: "`false`",
        example: "true",
        flag: Some("--cache"),
    },
    Key {
        name: "init",
        value: Value::Text,
        about: "A script for `sh -e` that prepares the machine before the command starts, in the folder `$REPL_INIT`, which stays for later runs. A run goes first to a machine that a run with the same script has prepared, and does not run it there again; a machine that was prepared by another script is not used.",
        default: "none",
        example: "python3 -m venv \"$REPL_INIT/venv\"",
        flag: None,
    },
    Key {
        name: "features",
        value: Value::Texts,
        about: "Names of `[features]` of the control plane's settings ([features.md](features.md)): its machine has all of them before the command starts, and none that is not named here.",
        default: "none",
        example: "[tailscale]",
        flag: Some("--feature"),
    },
    Key {
        name: "snapshot",
        value: Value::Text,
        about: "Id of a snapshot (`repl snapshot ls`): its files are in the run's folder before those of `files`.",
        default: "none",
        example: "snp_7",
        flag: Some("--snapshot"),
    },
    Key {
        name: "save_snapshot",
        value: Value::Flag,
        about: "Keep the run's folder as a snapshot when its commands have ended well. A snapshot that cannot be made does not fail the run.",
        default: "`false`",
        example: "true",
        flag: Some("--save-snapshot"),
    },
    Key {
        name: "on_lost_control",
        value: Value::OneOf(&["finish", "stop"]),
        about: "What the machine does with the work when it has lost the control plane for good: let it finish, or stop it.",
        default: "`finish`",
        example: "stop",
        flag: None,
    },
];

pub const RESOURCES: &[Key] = &[
    Key {
        name: "cpu",
        value: Value::Cpu,
        about: "Processors; fractions are fine, `500m` is 0.5.",
        default: "all",
        example: "2",
        flag: Some("--cpu"),
    },
    Key {
        name: "disk",
        value: Value::Memory,
        about: "Disk that its machine has, where its provider says how much that is; at least 4 MB. It is not a limit.",
        default: "any",
        example: "20GB",
        flag: None,
    },
    Key {
        name: "gpu",
        value: Value::Gpu,
        about: "GPUs: part of the model's name, and how many; a number alone is of any kind.",
        default: "none",
        example: "a100:2",
        flag: Some("--gpu"),
    },
    Key {
        name: "memory",
        value: Value::Memory,
        about: "Memory, at least 4 MB. A run that needs more is killed.",
        default: "all",
        example: "4GB",
        flag: Some("--memory"),
    },
];

pub const SANDBOX: &[Key] = &[Key {
    name: "network",
    value: Value::OneOf(&["host", "none"]),
    about: "The machine's network, or none.",
    default: "`host`",
    example: "none",
    flag: Some("--sandbox"),
}];

pub const CACHE: &[Key] = &[
    Key {
        name: "salt",
        value: Value::Text,
        about: "Part of the key: another salt, another result.",
        default: "none",
        example: "v2",
        flag: Some("--cache-salt"),
    },
    Key {
        name: "errors",
        value: Value::Flag,
        about: "A kept result whose exit code is not 0 is an answer, too.",
        default: "`false`",
        example: "true",
        flag: Some("--cache-errors"),
    },
];

pub const RETRY: &[Key] = &[
    Key {
        name: "max_attempts",
        value: Value::Attempts,
        about: "Attempts, the first included: 1 to 100.",
        default: "3",
        example: "5",
        flag: Some("--retry"),
    },
    Key {
        name: "on_events",
        value: Value::SomeOf(&["error", "no-capacity", "interruption"]),
        about: "After what: the work failed; there was no machine; the machine went away.",
        default: "after all three",
        example: "[error, interruption]",
        flag: None,
    },
    Key {
        name: "duration",
        value: Value::Duration,
        about: "No new attempt when so much time has passed since the run was submitted.",
        default: "no limit",
        example: "6h",
        flag: None,
    },
    Key {
        name: "delay",
        value: Value::Duration,
        about: "Pause before each further attempt after an error; `0s` for none.",
        default: "100 ms, doubled each time, up to 30 s",
        example: "5s",
        flag: Some("--retry-delay"),
    },
];
