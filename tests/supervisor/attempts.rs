//! Ways to write, as a table. Each runs with `$TREE` as working directory (`TREE`, `TOKEN` in the environment).

pub struct Attempt {
    pub name: &'static str,
    pub needs: Needs,
    /// Tried without confinement first; not so where that would change more than the tree.
    pub control: bool,
    pub script: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Shell,
    Perl,
    Python,
}

const fn shell(name: &'static str, script: &'static str) -> Attempt {
    Attempt { name, needs: Needs::Shell, control: true, script }
}

const fn perl(name: &'static str, script: &'static str) -> Attempt {
    Attempt { name, needs: Needs::Perl, control: true, script }
}

const fn python(name: &'static str, script: &'static str) -> Attempt {
    Attempt { name, needs: Needs::Python, control: true, script }
}

/// Would act on the machine, were it not held; what it acts with lies below the tree.
const fn mount(name: &'static str, script: &'static str) -> Attempt {
    Attempt { name, needs: Needs::Python, control: false, script }
}

/// Stands before every attempt in Python: `call` makes a system call by its number.
pub const PYTHON: &str = r#"
import ctypes, errno, fcntl, mmap, os, platform, shutil, signal, socket, stat, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
AT = -100
"#;

pub const ATTEMPTS: &[Attempt] = &[
    // The shell itself.
    shell("redirection", "echo x >new"),
    shell("redirection over a file", "echo x >file"),
    shell("redirection that appends", "echo x >>file"),
    shell("redirection that truncates", ": >file"),
    shell("redirection past noclobber", "set -C; echo x >|file"),
    shell("redirection for reading and writing", "echo x 1<>file"),
    shell("redirection of both streams", "ls /nowhere &>new"),
    shell("redirection through a link", "echo x >link"),
    shell("redirection through a dangling link", "echo x >dangling"),
    shell("redirection by another name", "echo x >second-name"),
    shell("redirection in a subshell", "(cd folder && echo x >new)"),
    shell("redirection in a substitution", "echo $(echo x >new)"),
    shell("redirection in a function", "f() { echo x; } >new; f"),
    shell("redirection by exec", "exec 5>new; echo x >&5"),
    shell("redirection in a trap", "trap 'echo x >new' EXIT"),
    shell("redirection to an absolute path", "echo x >\"$TREE/folder/new\""),
    shell("redirection with dots", "echo x >folder/../new"),
    shell("redirection through /proc", "echo x >/proc/self/cwd/new"),
    shell("redirection through the root of a process", "echo x >/proc/self/root$TREE/new"),
    shell("process substitution", "echo x > >(cat >new); wait; sleep 0.05"),
    shell("here-document", "cat >new <<'Z'\nx\nZ"),
    shell("printf", "printf x >new"),
    shell("history", "HISTFILE=$TREE/new; set -o history; echo x; history -s x; history -w \"$TREE/new\""),
    shell("another shell", "sh -c 'echo x >new'"),
    shell("a script from stdin", "echo 'echo x >new' | bash"),
    shell("a script that is sourced", "source <(echo 'echo x >new')"),
    shell("eval", "eval 'echo x >n''ew'"),
    shell("env", "env -i /bin/sh -c 'echo x >new'"),
    shell("xargs", "echo new | xargs touch"),
    shell("a background job", "(sleep 0.05; echo x >new) & wait"),
    shell("a daemon", "(setsid sh -c 'sleep 0.05; echo x >new' </dev/null >/dev/null 2>&1 &); sleep 0.3"),
    shell("nohup", "nohup sh -c 'echo x >new' >/dev/null 2>&1"),
    // Programs that write files.
    shell("touch a new file", "touch new"),
    shell("touch an old file", "touch file"),
    shell("touch a time", "touch -d 2001-01-01 file"),
    shell("touch a link", "touch -h -d 2001-01-01 link"),
    shell("touch a folder", "touch folder"),
    shell("tee", "echo x | tee new"),
    shell("tee that appends", "echo x | tee -a file"),
    shell("cp", "cp other new"),
    shell("cp over a file", "cp other file"),
    shell("cp with everything", "cp -p other new"),
    shell("cp of a tree", "cp -r folder new"),
    shell("cp of attributes alone", "chmod 640 other; touch -d 2001-01-01 other; cp --attributes-only -p other file"),
    shell("cp of links", "cp -l other new"),
    shell("cp of symbolic links", "cp -s \"$TREE/other\" new"),
    shell("install", "install -m 600 other new"),
    shell("dd", "dd if=/dev/zero of=file bs=1 count=3 2>/dev/null"),
    shell("dd into the middle", "dd if=/dev/zero of=file bs=1 count=1 seek=2 conv=notrunc 2>/dev/null"),
    shell("truncate shorter", "truncate -s 1 file"),
    shell("truncate longer", "truncate -s 9999 file"),
    shell("fallocate", "fallocate -l 9999 file"),
    shell("fallocate a hole", "fallocate -p -o 0 -l 4 file"),
    shell("split", "split -b 2 file part"),
    shell("sed in place", "sed -i s/content/x/ file"),
    shell("sort onto itself", "sort -r -o file file"),
    shell("awk", "awk 'BEGIN { print \"x\" > \"new\" }'"),
    shell("awk through a command", "awk 'BEGIN { system(\"touch new\") }'"),
    shell("find that runs", "find . -name file -exec touch {} +"),
    shell("find that prints to a file", "find . -maxdepth 0 -fprint new"),
    shell("find that deletes", "find . -name other -delete"),
    shell("tar in", "tar cf new.tar folder"),
    shell("tar out", "tar cf - folder | tar xf - -C empty"),
    shell("gzip", "gzip file -f"),
    shell("patch by ed", "command -v ed >/dev/null && printf '1d\\nw\\nq\\n' | ed -s file || sed -i 1d file"),
    shell("mktemp here", "mktemp -p ."),
    shell("git init", "git init -q new 2>/dev/null || mkdir new"),
    // Names.
    shell("rm", "rm -f file"),
    shell("rm of a tree", "rm -rf folder"),
    shell("unlink", "unlink other"),
    shell("rmdir", "rmdir empty"),
    shell("mkdir", "mkdir new"),
    shell("mkdir with parents", "mkdir -p new/a/b"),
    shell("mv", "mv file moved"),
    shell("mv over a file", "mv other file"),
    shell("mv of a folder", "mv folder moved"),
    shell("mv into another folder", "mv other folder/"),
    shell("mv out", "mv other \"$TMPDIR/\" 2>/dev/null || mv other \"$TREE/../\""),
    shell("mv in", "echo x >\"${TMPDIR:-/tmp}/x-$TOKEN\" && mv \"${TMPDIR:-/tmp}/x-$TOKEN\" new"),
    shell("link", "ln other new"),
    shell("link out", "d=${TMPDIR:-$TREE/..}; ln other \"$d/out\" && echo y >>\"$d/out\""),
    shell("symbolic link", "ln -s file new"),
    shell("symbolic link over another", "ln -sfn other link"),
    shell("fifo", "mkfifo new"),
    shell("device", "mknod new c 1 3 || mkfifo new"),
    // Modes, owners, attributes.
    shell("chmod", "chmod 600 file"),
    shell("chmod of a folder", "chmod 700 folder"),
    shell("chmod of a tree", "chmod -R a+w ."),
    shell("chmod by reference", "chmod 600 other; chmod --reference=other file"),
    shell("chmod plus x", "chmod +x file"),
    shell("setuid", "chmod u+s program"),
    shell("chown to oneself", "chown \"$(id -u)\" file"),
    shell("chown to another", "chown 12345 file || chown \"$(id -u)\" file"),
    shell("chown of a link", "chown -h \"$(id -u)\" link"),
    shell("chgrp", "chgrp \"$(id -g)\" file"),
    shell("setfattr", "command -v setfattr >/dev/null && setfattr -n user.new -v x file || chmod 600 file"),
    shell("chattr", "chattr +d file || chmod 600 file"),
    shell("setfacl", "command -v setfacl >/dev/null && setfacl -m u:12345:r file || chmod 600 file"),
    shell("umask does not help", "umask 0; mkdir -m 777 new"),
    // Perl.
    perl("perl: open", "open(my $f, '>', 'new') and print $f 'x';"),
    perl("perl: append", "my $f; open($f, '>>', 'file') and print $f 'x';"),
    perl("perl: open for both", "my $f; open($f, '+<', 'file') and print $f 'X';"),
    perl("perl: sysopen", "use Fcntl; sysopen(my $f, 'new', O_CREAT|O_WRONLY) and syswrite($f, 'x');"),
    perl("perl: unlink", "unlink 'other';"),
    perl("perl: rename", "rename 'other', 'new';"),
    perl("perl: chmod", "chmod 0600, 'file';"),
    perl("perl: utime", "utime 1, 1, 'file';"),
    perl("perl: chown", "chown $<, -1, 'file';"),
    perl("perl: link", "link 'other', 'new';"),
    perl("perl: truncate", "truncate 'file', 1;"),
    perl(
        "perl: double fork",
        "if (!fork) { if (!fork) { select(undef,undef,undef,0.05); open(my $f,'>','new'); exit } exit } wait; select(undef,undef,undef,0.3);",
    ),
    // Python: system calls that no program of the shell makes.
    python("python: open", "open('new', 'w').write('x')"),
    python("python: O_TRUNC for reading", "os.open('file', os.O_RDONLY | os.O_TRUNC)"),
    python("python: creat", "call(85, b'new', 0o600) if X86 else open('new', 'w')"),
    python(
        "python: openat2",
        "how = ctypes.create_string_buffer(struct.pack('QQQ', os.O_CREAT | os.O_WRONLY, 0o600, 0))\ncall(437, AT, b'new', how, 24)",
    ),
    python("python: truncate", "os.truncate('file', 1)"),
    python("python: truncate through a descriptor", "os.ftruncate(os.open('file', os.O_RDWR), 1)"),
    python("python: pwrite", "os.pwrite(os.open('file', os.O_RDWR), b'x', 3)"),
    python("python: writev", "os.writev(os.open('file', os.O_WRONLY), [b'x', b'y'])"),
    python("python: mmap", "m = mmap.mmap(os.open('file', os.O_RDWR), 0)\nm[0:1] = b'X'\nm.flush()"),
    python(
        "python: a mapping turned writable",
        "fd = os.open('file', os.O_RDONLY)\nlibc.mmap.restype = ctypes.c_void_p\na = libc.mmap(None, 4096, 1, 1, fd, 0)\nif libc.mprotect(ctypes.c_void_p(a), 4096, 3) == 0: ctypes.memset(a, 88, 1); os.sync()\nelse: open('file', 'w')",
    ),
    python(
        "python: reopen through /proc",
        "fd = os.open('file', os.O_RDONLY)\nos.write(os.open(f'/proc/self/fd/{fd}', os.O_WRONLY), b'X')",
    ),
    python(
        "python: reopen a path descriptor",
        "fd = os.open('file', os.O_PATH)\nos.write(os.open(f'/proc/self/fd/{fd}', os.O_RDWR), b'X')",
    ),
    python("python: reopen through /dev/fd", "fd = os.open('file', os.O_RDONLY)\nos.write(os.open(f'/dev/fd/{fd}', os.O_WRONLY), b'X')"),
    python(
        "python: O_TMPFILE with a name",
        "fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600)\ncall(265 if X86 else 37, AT, f'/proc/self/fd/{fd}'.encode(), AT, b'new', 0x400)",
    ),
    python(
        "python: O_TMPFILE elsewhere, linked here",
        "fd = os.open(os.environ.get('TMPDIR', '.'), os.O_TMPFILE | os.O_RDWR, 0o600)\ncall(265 if X86 else 37, AT, f'/proc/self/fd/{fd}'.encode(), AT, b'new', 0x400)",
    ),
    python(
        "python: memory file linked here",
        "fd = os.memfd_create('x')\nos.write(fd, b'x')\nshutil.copyfile(f'/proc/self/fd/{fd}', 'new')",
    ),
    python("python: rename with exchange", "call(316 if X86 else 276, AT, b'file', AT, b'other', 2)"),
    python("python: rename without replacing", "call(316 if X86 else 276, AT, b'file', AT, b'new', 1)"),
    python("python: renameat through a folder", "d = os.open('folder', os.O_RDONLY)\nos.rename('file', 'new', src_dir_fd=d, dst_dir_fd=d)"),
    python("python: unlinkat of a folder", "d = os.open('.', os.O_RDONLY)\nos.rmdir('empty', dir_fd=d)"),
    python("python: mkdirat", "os.mkdir('new', dir_fd=os.open('folder', os.O_RDONLY))"),
    python("python: symlinkat", "os.symlink('x', 'new', dir_fd=os.open('folder', os.O_RDONLY))"),
    python("python: a socket with a name", "socket.socket(socket.AF_UNIX).bind('new')"),
    python("python: mknod of a file", "os.mknod('new', stat.S_IFREG | 0o600)"),
    python("python: fchmod", "os.fchmod(os.open('file', os.O_RDONLY), 0o600)"),
    python("python: fchmodat", "os.chmod('file', 0o600, dir_fd=os.open('folder', os.O_RDONLY))"),
    python("python: fchmodat2", "call(452, AT, b'file', 0o600, 0)"),
    python("python: fchown", "os.fchown(os.open('file', os.O_RDONLY), os.getuid(), -1)"),
    python("python: fchownat", "os.chown('file', os.getuid(), -1, dir_fd=os.open('folder', os.O_RDONLY))"),
    python("python: lchown", "os.lchown('link', os.getuid(), -1)"),
    python("python: fchownat by descriptor alone", "call(260 if X86 else 54, os.open('file', os.O_RDONLY), b'', os.getuid(), -1, 0x1000)"),
    python("python: utimensat", "os.utime('file', (1, 1))"),
    python("python: futimens", "os.utime(os.open('file', os.O_RDONLY), (1, 1))"),
    python("python: utime", "call(132, b'file', None) if X86 else os.utime('file')"),
    python("python: utimes", "call(235, b'file', None) if X86 else os.utime('file')"),
    python("python: futimesat", "call(261, AT, b'file', None) if X86 else os.utime('file')"),
    python("python: setxattr", "os.setxattr('file', 'user.new', b'x')"),
    python("python: setxattr through a descriptor", "os.setxattr(os.open('file', os.O_RDONLY), 'user.new', b'x')"),
    python(
        "python: setxattrat",
        "v = ctypes.create_string_buffer(b'x')\na = ctypes.create_string_buffer(struct.pack('QII', ctypes.addressof(v), 1, 0))\ncall(463, AT, b'file', 0, b'user.new', a, 16)",
    ),
    python("python: removexattr", "os.removexattr('file', 'user.known')"),
    python("python: removexattrat", "call(466, AT, b'file', 0, b'user.known')"),
    python(
        "python: an access list",
        "os.setxattr('file', 'system.posix_acl_access', struct.pack('<I' + 'HHI' * 5, 2, 1, 6, 0xffffffff, 2, 4, 12345, 4, 4, 0xffffffff, 16, 4, 0xffffffff, 32, 0, 0xffffffff))",
    ),
    python("python: flags of a file", "fcntl.ioctl(os.open('file', os.O_RDONLY), 0x40086602, struct.pack('l', 0x40))"),
    python("python: flags of a file, the short form", "fcntl.ioctl(os.open('file', os.O_RDONLY), 0x40046602, struct.pack('i', 0x40))"),
    python(
        "python: project and extended flags",
        "fcntl.ioctl(os.open('file', os.O_RDONLY), 0x401c5820, struct.pack('IIIII8x', 0x80, 0, 0, 0, 0))",
    ),
    python(
        "python: file_setattr",
        "a = ctypes.create_string_buffer(struct.pack('QIIII', 0x80, 0, 0, 0, 0))\ncall(469, AT, b'file', a, 24, 0)",
    ),
    python("python: version of a file", "fcntl.ioctl(os.open('file', os.O_RDONLY), 0x40086604, struct.pack('l', 7))\nos.utime('file')"),
    python("python: copy_file_range", "os.copy_file_range(os.open('other', os.O_RDONLY), os.open('file', os.O_WRONLY), 4)"),
    python("python: sendfile", "os.sendfile(os.open('new', os.O_CREAT | os.O_WRONLY), os.open('other', os.O_RDONLY), 0, 4)"),
    python("python: splice", "r, w = os.pipe()\nos.write(w, b'x')\nos.splice(r, os.open('file', os.O_WRONLY), 1)"),
    python(
        "python: clone of a file",
        "try: fcntl.ioctl(os.open('new', os.O_CREAT | os.O_WRONLY), 0x40049409, os.open('other', os.O_RDONLY))\nexcept OSError: pass",
    ),
    python("python: fallocate", "os.posix_fallocate(os.open('file', os.O_RDWR), 0, 9999)"),
    mount("python: bind mount", "if libc.mount(b'empty', b'folder', None, 4096, None) == 0: open('folder/new', 'w')"),
    mount("python: mount of memory", "libc.mount(b'none', b'folder', b'tmpfs', 0, None)"),
    python(
        "python: a namespace of its own",
        "if libc.unshare(0x10000000 | 0x20000) == 0: libc.mount(None, b'/', None, 0x44000, None)\nopen('new', 'w')",
    ),
    python("python: chroot", "libc.chroot(os.environ['TREE'].encode())\nopen('/new', 'w').write('x')"),
    python(
        "python: handle of a file",
        "h = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128))\nm = ctypes.c_int()\nn = 303 if X86 else 264\ncall(n, AT, b'file', h, ctypes.byref(m), 0)\nfd = call(n + 1, os.open('.', os.O_RDONLY), h, os.O_RDWR)\nos.write(fd, b'X')",
    ),
    python("python: memory of another process", "p = os.getppid()\nopen(f'/proc/{p}/mem', 'r+b') if False else None\nopen('new', 'w')"),
    python("python: a thread", "import threading\nt = threading.Thread(target=lambda: open('new', 'w'))\nt.start(); t.join()"),
    python("python: vfork and exec", "subprocess.run(['touch', 'new'])"),
    python(
        "python: double fork",
        "\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(0.05); open('new', 'w').write('x')\n    os._exit(0)\nos.wait(); time.sleep(0.3)",
    ),
    python(
        "python: descriptor from a child",
        "a, b = socket.socketpair()\nif os.fork() == 0:\n    socket.send_fds(b, [b'x'], [os.open('file', os.O_RDWR)]); os._exit(0)\nb.close()\nos.write(socket.recv_fds(a, 1, 1)[1][0], b'X')",
    ),
    python(
        "python: io_uring",
        r#"
params = ctypes.create_string_buffer(120)
ring = call(425, 4, params)
(features,) = struct.unpack_from('I', params.raw, 20)
sq_off, cq_off = struct.unpack_from('IIIIIIIIQ', params.raw, 40), struct.unpack_from('IIIIIIIIQ', params.raw, 80)
entries = struct.unpack_from('I', params.raw, 0)[0]
sq = mmap.mmap(ring, sq_off[6] + entries * 4, flags=mmap.MAP_SHARED, prot=3, offset=0)
sqes = mmap.mmap(ring, entries * 64, flags=mmap.MAP_SHARED, prot=3, offset=0x10000000)
path = ctypes.create_string_buffer(b'new')
# mkdirat: opcode 37, fd, len = mode, addr = path
struct.pack_into('BBHiQQII', sqes, 0, 37, 0, 0, AT, 0, ctypes.addressof(path), 0o700, 0)
struct.pack_into('I', sq, sq_off[6], 0)
tail = struct.unpack_from('I', sq, sq_off[1])[0]
struct.pack_into('I', sq, sq_off[1], tail + 1)
call(426, ring, 1, 1, 1, None, 0)
"#,
    ),
    python(
        "python: calls of 32 bits",
        r#"
if not X86: os.chmod('file', 0o600); sys.exit()
code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, prot=7)
base = ctypes.addressof(ctypes.c_char.from_buffer(code))
# push rbx; mov eax,15 (chmod); mov ebx,path; mov ecx,0600; int 0x80; pop rbx; ret
path = base + 256
code[256:261] = b'file\0'
code[0:20] = b'\x53\xb8\x0f\0\0\0\xbb' + struct.pack('I', path) + b'\xb9' + struct.pack('I', 0o600) + b'\xcd\x80\x5b\xc3'
ctypes.CFUNCTYPE(ctypes.c_long)(base)()
"#,
    ),
    python("python: calls of x32", "call(0x40000000 + 90, b'file', 0o600) if X86 else os.chmod('file', 0o600)"),
];
