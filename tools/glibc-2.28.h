/* Included before every file of a wheel, so that the linker chooses symbol versions of 2018. glibc
 * 2.34 moved these functions from libpthread and libdl to libc and gave them newer versions, which
 * a linker would choose. */
#ifdef __cplusplus // old symbols of GCC's C++ library, too
#include <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT // pthread_cond_clockwait is newer
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
static const char never_single = 0;
#define __libc_single_threaded never_single
#endif
#endif
#if defined __x86_64__
#define FIRST(name, x86) __asm__(".symver " #name "," #name "@GLIBC_" x86);
#elif defined __aarch64__ // 64-bit ARM's first glibc was 2.17
#define FIRST(name, x86) __asm__(".symver " #name "," #name "@GLIBC_2.17");
#endif
#ifdef FIRST
FIRST(dlopen, "2.2.5")
FIRST(dlsym, "2.2.5")
FIRST(pthread_condattr_setclock, "2.3.3")
FIRST(pthread_create, "2.2.5")
FIRST(pthread_join, "2.2.5")
FIRST(pthread_mutex_trylock, "2.2.5")
FIRST(pthread_rwlock_rdlock, "2.2.5")
FIRST(pthread_rwlock_unlock, "2.2.5")
FIRST(pthread_rwlock_wrlock, "2.2.5")
FIRST(pthread_setname_np, "2.12")
FIRST(pthread_sigmask, "2.2.5")
#ifdef __cplusplus
__asm__(".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
        "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
#undef FIRST
#endif
