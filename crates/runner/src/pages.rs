//! Releases memory of a waiting keeper: pages of the program file that were read at its start and are not needed while it waits. Never
//! releases a page that could differ from its file.

use std::ffi::c_void;

/// Unmaps the code and the constants of this process: what is used again comes back from the page cache at its next
/// use, which costs a microsecond or so. What was ever written (variables, relocated constants) stays.
pub fn let_go() {
    // SAFETY: the callback only reads what it is given and calls madvise on pages that equal their file.
    unsafe { libc::dl_iterate_phdr(Some(let_go_of_object), std::ptr::null_mut()) };
}

unsafe extern "C" fn let_go_of_object(object: *mut libc::dl_phdr_info, _: libc::size_t, _: *mut c_void) -> libc::c_int {
    // SAFETY: the loader hands out a valid object with that many headers.
    let (base, headers) = unsafe {
        let object = &*object;
        if object.dlpi_phdr.is_null() {
            return 0;
        }
        (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
    };
    // SAFETY: a plain question to the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0) {
        let from = (base + header.p_vaddr) & !(page - 1);
        let to = (base + header.p_vaddr + header.p_memsz).next_multiple_of(page);
        // SAFETY: a mapping of a file that may not be written to, so dropping its pages loses nothing.
        unsafe { libc::madvise(from as *mut c_void, (to - from) as usize, libc::MADV_DONTNEED) };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_resident_and_all_still_works() {
        // Counted page by page, unlike the figures in `status`.
        let resident = || -> u64 {
            let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
            line.split_ascii_whitespace().next().unwrap().parse().unwrap()
        };
        let before = resident();
        let_go();
        let after = resident();
        assert!(after < before, "{before} kB were resident, {after} still are");
        assert_eq!(format!("{:?}", [1.5, 2.0]), "[1.5, 2.0]");
    }
}
