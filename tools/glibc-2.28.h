/* Before every file of a wheel: the functions that glibc has had since 2018. Version 2.34 moved these
   from libpthread and libdl, and gave them a second number, which a linker takes. */
#if defined __x86_64__
#define FIRST(name, version) __asm__(".symver " #name "," #name "@GLIBC_" version);
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
#undef FIRST
#endif
