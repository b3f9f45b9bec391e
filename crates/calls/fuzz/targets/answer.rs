//! Whatever an adapter prints and however it ends: an answer, or a failure with a message of bounded length.
#![no_main]

use calls::adapter::{Ended, How, read, read_closing};
use libfuzzer_sys::fuzz_target;

/// Of a message for people.
const MOST_BYTES: usize = 64 * 1024;

fuzz_target!(|input: (Vec<u8>, Vec<u8>, u8)| {
    let (stdout, stderr, how) = input;
    let how = match how {
        0..=199 => How::Exited(0),
        200..=219 => How::Exited(how.into()),
        220..=239 => How::Signalled(i32::from(how) - 220),
        240..=249 => How::TimedOut,
        _ => How::NotStarted,
    };
    let ended = Ended { how, stdout, stderr };
    for none in [read(&ended).err(), read_closing(&ended).err()].into_iter().flatten() {
        assert!(!none.code.is_empty() && none.message.len() <= MOST_BYTES, "{} bytes", none.message.len());
    }
});
