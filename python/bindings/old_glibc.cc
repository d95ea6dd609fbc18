// For programs and modules that run with an older C library than the one they are linked with, as
// that of RHEL 8 and Debian 10, glibc 2.28. Linked into wheels and releases for x86-64.
//
// The linker gives a symbol its newest version, and glibc 2.29 to 2.38 made new ones of functions
// that had not changed: threads moved from libpthread into libc, exp lost an error handler. glibc
// keeps the old versions for programs that are linked already, and never drops one. So each
// function below is defined here, unseen from outside, and goes on to its old version. That costs a
// jump; exp and its kin also look whether the result is finite.
#include <cstdint>
#include <span>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLUICE_HIDDEN __attribute__((visibility("hidden")))

// Defines `name` as a tail jump to `old`: the function sees the arguments and the return address of
// its caller, which dlopen and dlsym look at.
#define SLUICE_OLD_AS(name, old, version)                                           \
  __asm__(".symver old_" #name ", " #old "@GLIBC_" #version                         \
          "; .pushsection .text; "                                                  \
          ".globl " #name "; .hidden " #name "; .type " #name ", @function; " #name \
          ": .cfi_startproc; jmp *old_" #name                                       \
          "@GOTPCREL(%rip); .cfi_endproc; "                                         \
          ".size " #name ", . - " #name "; .popsection")
#define SLUICE_OLD(name, version) SLUICE_OLD_AS(name, name, version)

// What Sluice, libstdc++, libgcc and libcrypto call.
SLUICE_OLD(dladdr, 2.2.5);
SLUICE_OLD(dlclose, 2.2.5);
SLUICE_OLD(dlerror, 2.2.5);
SLUICE_OLD(dlopen, 2.2.5);
SLUICE_OLD(dlsym, 2.2.5);
SLUICE_OLD(exp, 2.2.5);
SLUICE_OLD(exp2, 2.2.5);
SLUICE_OLD(fmod, 2.2.5);
SLUICE_OLD(log, 2.2.5);
SLUICE_OLD(log2, 2.2.5);
SLUICE_OLD(pow, 2.2.5);
SLUICE_OLD(__pthread_key_create, 2.2.5);
SLUICE_OLD(pthread_condattr_setclock, 2.3.3);
SLUICE_OLD(pthread_create, 2.2.5);
SLUICE_OLD(pthread_detach, 2.2.5);
SLUICE_OLD(pthread_getcpuclockid, 2.2.5);
SLUICE_OLD(pthread_getspecific, 2.2.5);
SLUICE_OLD(pthread_join, 2.2.5);
SLUICE_OLD(pthread_key_create, 2.2.5);
SLUICE_OLD(pthread_key_delete, 2.2.5);
SLUICE_OLD(pthread_mutex_timedlock, 2.2.5);
SLUICE_OLD(pthread_mutex_trylock, 2.2.5);
SLUICE_OLD(pthread_once, 2.2.5);
SLUICE_OLD(pthread_rwlock_destroy, 2.2.5);
SLUICE_OLD(pthread_rwlock_init, 2.2.5);
SLUICE_OLD(pthread_rwlock_rdlock, 2.2.5);
SLUICE_OLD(pthread_rwlock_unlock, 2.2.5);
SLUICE_OLD(pthread_rwlock_wrlock, 2.2.5);
SLUICE_OLD(pthread_setname_np, 2.12);
SLUICE_OLD(pthread_setspecific, 2.2.5);
SLUICE_OLD(pthread_sigmask, 2.2.5);

// Of Debian 13, glibc 2.38: without the binary numbers of C23.
SLUICE_OLD_AS(__isoc23_strtol, strtol, 2.2.5);
SLUICE_OLD_AS(__isoc23_strtoll, strtoll, 2.2.5);
SLUICE_OLD_AS(__isoc23_strtoul, strtoul, 2.2.5);
SLUICE_OLD_AS(__isoc23_strtoull, strtoull, 2.2.5);

// What CUDA's libcudart_static.a (13.0) calls besides.
SLUICE_OLD(dlmopen, 2.3.4);
SLUICE_OLD(dlvsym, 2.2.5);
SLUICE_OLD(pthread_condattr_setpshared, 2.2.5);
SLUICE_OLD(pthread_kill, 2.2.5);
SLUICE_OLD(pthread_mutexattr_destroy, 2.2.5);
SLUICE_OLD(pthread_mutexattr_init, 2.2.5);
SLUICE_OLD(pthread_mutexattr_setpshared, 2.2.5);
SLUICE_OLD(pthread_mutexattr_settype, 2.2.5);
SLUICE_OLD(pthread_rwlock_timedrdlock, 2.2.5);
SLUICE_OLD(pthread_rwlock_timedwrlock, 2.2.5);
SLUICE_OLD(pthread_rwlock_tryrdlock, 2.2.5);
SLUICE_OLD(pthread_rwlock_trywrlock, 2.2.5);
SLUICE_OLD(pthread_rwlockattr_destroy, 2.2.5);
SLUICE_OLD(pthread_rwlockattr_init, 2.2.5);
SLUICE_OLD(pthread_rwlockattr_setpshared, 2.2.5);
SLUICE_OLD(pthread_spin_destroy, 2.2.5);
SLUICE_OLD(pthread_spin_init, 2.2.5);
SLUICE_OLD(pthread_spin_lock, 2.2.5);
SLUICE_OLD(pthread_spin_trylock, 2.2.5);
SLUICE_OLD(pthread_spin_unlock, 2.2.5);
SLUICE_OLD(sem_destroy, 2.2.5);
SLUICE_OLD(sem_init, 2.2.5);
SLUICE_OLD(sem_post, 2.2.5);
SLUICE_OLD(sem_timedwait, 2.2.5);
SLUICE_OLD(sem_trywait, 2.2.5);
SLUICE_OLD(sem_wait, 2.2.5);
SLUICE_OLD(shm_open, 2.2.5);
SLUICE_OLD(shm_unlink, 2.2.5);

// glibc 2.32 says here whether the process has one thread, and libstdc++ then counts references
// without atomic instructions. A process of Sluice has several.
SLUICE_HIDDEN char __libc_single_threaded = 0;

// Functions of glibc 2.33. Before, they were inline in its headers and called others.
extern "C" {

SLUICE_HIDDEN int stat(const char* path, struct stat* info) noexcept {
  return static_cast<int>(syscall(SYS_stat, path, info));
}

SLUICE_HIDDEN int lstat(const char* path, struct stat* info) noexcept {
  return static_cast<int>(syscall(SYS_lstat, path, info));
}

SLUICE_HIDDEN int fstat(int file, struct stat* info) noexcept {
  return static_cast<int>(syscall(SYS_fstat, file, info));
}

SLUICE_HIDDEN int fstatat(int folder, const char* path, struct stat* info, int flags) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, info, flags));
}

// The same structure on this processor.
SLUICE_HIDDEN int fstat64(int file, struct stat64* info) noexcept {
  return static_cast<int>(syscall(SYS_fstat, file, info));
}

}  // extern "C"

namespace {

// The time of the wall clock that is as far away as `until` of `clock`.
timespec wall_time(clockid_t clock, const timespec& until) {
  timespec now{}, wall{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t ns = wall.tv_nsec + until.tv_nsec - now.tv_nsec + kSecond;  // not negative
  return {.tv_sec = wall.tv_sec + until.tv_sec - now.tv_sec - 1 + ns / kSecond,
          .tv_nsec = ns % kSecond};
}

// The first object of the process that holds `pc`, for _dl_find_object below.
struct FoundObject {
  uintptr_t pc;
  dl_find_object* found;
};

int find_in(dl_phdr_info* object, size_t, void* data) {
  auto& [pc, found] = *static_cast<FoundObject*>(data);
  bool holds = false;
  void* frames = nullptr;
  for (const auto& part : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
    const uintptr_t first = object->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && pc >= first && pc - first < part.p_memsz) holds = true;
    if (part.p_type == PT_GNU_EH_FRAME) frames = reinterpret_cast<void*>(first);
  }
  if (holds) found->dlfo_eh_frame = frames;
  return holds && frames != nullptr ? 1 : 0;
}

}  // namespace

// Functions of glibc 2.30: waits by another clock than the wall clock, for wait_for and
// try_lock_for. An older one waits by the wall clock. libstdc++ then looks at the steady clock and
// waits again if it was too early; if somebody sets the wall clock back, such a wait is too long.
extern "C" {

SLUICE_HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                         clockid_t clock, const timespec* until) {
  static const auto newer = reinterpret_cast<decltype(&pthread_cond_clockwait)>(
      dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (newer != nullptr) return newer(condition, mutex, clock, until);
  const timespec wall = wall_time(clock, *until);
  return pthread_cond_timedwait(condition, mutex, &wall);
}

SLUICE_HIDDEN int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                          const timespec* until) noexcept {
  static const auto newer = reinterpret_cast<decltype(&pthread_mutex_clocklock)>(
      dlsym(RTLD_DEFAULT, "pthread_mutex_clocklock"));
  if (newer != nullptr) return newer(mutex, clock, until);
  const timespec wall = wall_time(clock, *until);
  return pthread_mutex_timedlock(mutex, &wall);
}

// The unwinder of libgcc.a asks glibc 2.35 where the tables of `pc` are, and reads this member
// alone. With an older one it looked at all objects of the process, as this does; an exception
// through 20 functions takes 9 us either way. (A wheel uses the system's libgcc_s instead.)
SLUICE_HIDDEN int _dl_find_object(void* pc, dl_find_object* found) noexcept {
  FoundObject search{.pc = reinterpret_cast<uintptr_t>(pc), .found = found};
  return dl_iterate_phdr(find_in, &search) == 1 ? 0 : -1;
}

using Main = int (*)(int, char**, char**);
using Initialise = void (*)(int, char**, char**);
using Finish = void (*)();

// Of the C library's startup files and of the linker. Weak, since a module has no array of this
// name.
void _init();
extern SLUICE_HIDDEN __attribute__((weak)) const Initialise __init_array_start[];
extern SLUICE_HIDDEN __attribute__((weak)) const Initialise __init_array_end[];

int old_libc_start_main(Main main, int argc, char** argv, Initialise init, Finish fini,
                        Finish rtld_fini, void* stack_end);
__asm__(".symver old_libc_start_main, __libc_start_main@GLIBC_2.2.5");

// Since glibc 2.34 the C library runs the constructors of the program itself; before, a function
// that was linked into the program did, and an older library runs none where there is no such
// function.
static void run_constructors(int argc, char** argv, char** environment) {
  _init();
  for (const Initialise* constructor = __init_array_start; constructor != __init_array_end;
       ++constructor) {
    (*constructor)(argc, argv, environment);
  }
}

SLUICE_HIDDEN int __libc_start_main(Main main, int argc, char** argv, Initialise init, Finish fini,
                                    Finish rtld_fini, void* stack_end) {
  return old_libc_start_main(main, argc, argv, init != nullptr ? init : run_constructors, fini,
                             rtld_fini, stack_end);
}

}  // extern "C"
