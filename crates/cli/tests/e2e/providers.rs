//! Providers beside `local`: a program of the owner's, and one that is added while the control plane runs. A run goes there by one flag.

use crate::home::{Home, program};
use crate::process;
use std::path::Path;

/// Each look is a command of its own, and the machine ends within a few of them.
const MANY_LOOKS: usize = 500;

fn example() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/providers/folder.py");
    path.canonicalize().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_run_goes_to_the_machines_of_a_program_by_one_flag() {
    let home = Home::new();
    let root = home.here().join("machines");
    let words = [example(), root.to_str().unwrap().to_owned(), program().to_str().unwrap().to_owned()];
    // The same program, which says of every machine that there is none of its name.
    let forgetful =
        format!("if [ \"$3\" = find ]; then cat >&2; echo '{{\"handle\": null}}'; else exec {} \"$@\"; fi", words[0]);
    let elsewhere = home.here().join("others");
    let forgets = ["sh", "-c", &forgetful, "sh", elsewhere.to_str().unwrap(), &words[2]];
    home.configure(&format!(
        "[providers.folder]\nkind = 'exec'\nexec = {words:?}\nreach = 'host'\nregions = ['here']\nsees_runner = true\n\
         restarts_runner = true\nremembers_names = true\nkeeps_workdirs = true\n[prices]\nfolder = '0.5'\n\
         [providers.forgets]\nkind = 'exec'\nexec = {forgets:?}\nreach = 'host'\nregions = ['here']\n"
    ));
    let plan = home.json(&["run", "--dry-run", "-c", "true"]);
    assert_eq!((&plan["provider"], &plan["passed_over"][0]["provider"]), (&"local".into(), &"folder".into()));
    assert_eq!(plan["passed_over"][0]["why"], "it bills, and nobody asked for it");
    let plan = home.json(&["run", "--dry-run", "--provider", "folder", "-c", "true"]);
    assert_eq!((&plan["provider"], &plan["price_per_hour"]), (&"folder".into(), &"0.5".into()));
    let ended = home.say(&["run", "--provider", "folder", "-c", "echo from $PWD"]);
    assert_eq!(ended.code, 0, "{ended}");
    assert!(ended.out().starts_with(&format!("from {}", root.display())), "{ended}");
    let sleeps = ended.stderr.contains("sleeps for 15m") && ended.stderr.contains("on_lost_control: finish");
    assert_eq!(sleeps, !home.is_many(), "only a control plane of this computer sleeps with it: {ended}");
    let report = home.json(&["provider", "test", "folder", "--yes"]);
    assert_eq!(report["passed"], true, "{report}");
    let failed = home.say(&["provider", "test", "forgets", "--yes"]);
    let said = failed.out();
    assert!(failed.code == 1 && said.contains("FAIL ") && said.contains("ok   "), "{failed}");
    let wrong = home.say(&["run", "--provider", "foldr", "-c", "true"]);
    assert!(wrong.code == 1 && wrong.stderr.contains("did you mean `folder`?"), "{wrong}");
}

/// The program is told, the machine has the price of such a one, and a run that did not ask for it does not get it.
#[test]
fn a_run_that_takes_spot_machines_gets_one() {
    let home = Home::new();
    let (root, told, repl) = (home.here().join("machines"), home.here().join("told"), program());
    let noted = format!("tee -a {} | {} \"$@\"", told.display(), example());
    let words = ["sh", "-c", &noted, "sh", root.to_str().unwrap(), repl.to_str().unwrap()];
    home.configure(&format!(
        "[providers.folder]\nkind = 'exec'\nexec = {words:?}\nreach = 'host'\nregions = ['here']\nspot = true\n\
         spot_price = '0.2'\n[prices]\nfolder = '0.5'\n"
    ));
    let prices = home.json(&["provider", "prices", "folder"]);
    let of =
        |spot: bool| prices.as_array().unwrap().iter().find(|it| it["spot"] == spot).unwrap()["price_per_hour"].clone();
    assert_eq!((of(true), of(false)), ("0.2".into(), "0.5".into()));
    for (flags, price, is_spot) in
        [(&["--provider", "folder", "--spot"][..], "0.2", true), (&["--provider", "folder"], "0.5", false)]
    {
        let plan = home.json(&[&["run", "--dry-run"][..], flags, &["-c", "true"]].concat());
        assert_eq!(plan["price_per_hour"], price, "{plan}");
        assert_eq!(home.run(flags, "true").code, 0);
        assert_eq!(home.instances()[0]["price_per_hour"], price);
        let asked = std::fs::read_to_string(&told).unwrap();
        let mut asked = asked.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let last = asked.rfind(|ask| ask["boot"].is_object()).unwrap();
        assert_eq!(last["spot"], is_spot);
    }
    home.adds_up();
}

#[test]
fn a_provider_that_is_added_works_at_once_and_goes_with_its_last_machine() {
    let home = Home::new();
    let added = home.say(&["provider", "add", "local", "second", "--set", "max_instances=1", "--price", "2.5"]);
    assert_eq!(added.code, 0, "{added}");
    assert_eq!(home.json(&["provider", "prices", "second"])[0]["price_per_hour"], "2.5");
    let unscanned = || home.done(&["orphans", "list"]).out().contains("second/local: not yet");
    assert!((0..MANY_LOOKS).any(|_| !unscanned()), "what it has is listed without a restart");
    let ended = home.say(&["run", "--provider", "second", "--hold", "0s", "-c", "echo hello"]);
    assert_eq!((ended.code, ended.out().as_str()), (0, "hello\n"), "{ended}");
    for (words, said) in [
        (&["provider", "add", "local", "second"][..], "repl provider remove second"),
        (&["provider", "add", "exec", "third"], "settings only"),
        (&["provider", "add", "locl", "third"], "did you mean `local`?"),
        (&["provider", "add", "local", "third", "--set", "max_instnces=1"], "did you mean `max_instances`?"),
        (&["provider", "add", "local", "third", "--price", "much"], "--price"),
        (&["provider", "add", "local", "local"], "which win"),
        (&["provider", "remove", "local"], "stands in the settings"),
        (&["provider", "remove", "third"], "no such provider"),
    ] {
        let ended = home.say(words);
        assert!(ended.code != 0 && ended.stderr.contains(said), "{words:?} should say `{said}`: {ended}");
    }
    let removed = home.say(&["provider", "remove", "second", "--force"]);
    assert_eq!(removed.code, 0, "{removed}");
    let refused = home.say(&["run", "--provider", "second", "-c", "true"]);
    assert_ne!(refused.code, 0, "{refused}");
    goes(&home, "second");
}

/// It is listed until its last machine is gone.
fn goes(home: &Home, name: &str) {
    let gone = || home.json(&["provider", "ls"]).as_array().unwrap().iter().all(|it| it["name"] != name);
    assert!((0..MANY_LOOKS).any(|_| gone()), "it goes with its last machine");
}

#[test]
fn machines_of_a_provider_that_was_deleted_from_the_settings_are_still_ended() {
    let home = Home::with("[providers.second]\nkind = 'local'\n");
    assert_eq!(home.run(&["--provider", "second", "--hold", "0s"], "true").code, 0);
    let machine = home.instances()[0]["name"].as_str().unwrap().to_owned();
    let folder = home.data().join("instances-second").join(&machine);
    assert!(folder.exists());
    process::kill(home.control_plane());
    home.configure("");
    home.run(&["--provider", "second"], "true").refused(1, &["second"]);
    process::vanishes(&folder);
    goes(&home, "second");
}
