//! What this process keeps in memory while it waits: not the code that only its start needed.
//!
//! Nearly all memory of a waiting agent is its own program file, mapped page by page while it started: argument parsing,
//! settings, database, TLS. Those pages are clean and stay in the page cache; only their mapping is given back, and what
//! is needed again comes back by a minor fault. Sixty waiting agents then hold little more than their own data.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

/// A wait has lasted this long before code is given back, so that short ones cost nothing.
const AFTER: Duration = Duration::from_millis(250);

/// Waits for something that may take long.
pub(crate) async fn waiting<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    tokio::select! {
        biased;
        output = &mut future => return output,
        () = tokio::time::sleep(AFTER) => give_back_code(),
    }
    future.await
}

/// Unmaps the pages of the program's own code that are mapped now. Without effect on other systems than Linux.
pub(crate) fn give_back_code() {
    #[cfg(target_os = "linux")]
    linux::give_back_code();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::c_void;
    use std::ops::Range;
    use std::sync::OnceLock;

    use rustix::mm::{Advice, madvise};

    pub(super) fn give_back_code() {
        static CODE: OnceLock<Option<Range<usize>>> = OnceLock::new();
        let Some(code) = CODE.get_or_init(own_code) else { return };
        // Only advice: refused, everything stays mapped.
        #[expect(unsafe_code, reason = "a mapping of a file that is never written to: its pages come back from the file as they were")]
        let _ = unsafe { madvise(code.start as *mut c_void, code.len(), Advice::LinuxDontNeed) };
    }

    /// Where this very function's code lies: a mapping of a file, executable, and not writable.
    fn own_code() -> Option<Range<usize>> {
        let here = own_code as *const () as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        maps.lines().find_map(|line| file_code(line).filter(|code| code.contains(&here)))
    }

    /// `00401000-00d13000 r-xp 00001000 fe:00 1234   /usr/bin/zapmyco`
    fn file_code(line: &str) -> Option<Range<usize>> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let is_code = fields.next()? == "r-xp" && fields.nth(3)?.starts_with('/');
        let address = |text| usize::from_str_radix(text, 16).ok();
        is_code.then_some(address(start)?..address(end)?)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn only_code_of_files_is_given_back() {
            assert_eq!(file_code("00401000-00d13000 r-xp 00001000 fe:00 1234   /usr/bin/zapmyco"), Some(0x40_1000..0xd1_3000));
            for other in [
                "00400000-00401000 r--p 00000000 fe:00 1234   /usr/bin/zapmyco",
                "00d13000-00d23000 rwxp 00001000 fe:00 1234   /usr/bin/zapmyco",
                "7ffd1000-7ffd3000 r-xp 00000000 00:00 0      [vdso]",
                "7ffd1000-7ffd3000 r-xp 00000000 00:00 0",
                "",
            ] {
                assert_eq!(file_code(other), None, "{other}");
            }
        }

        #[test]
        fn code_works_after_it_was_given_back() {
            assert!(own_code().is_some());
            for round in 0..100 {
                give_back_code();
                assert_eq!(format!("{round:03}").len(), 3);
            }
        }
    }
}
