// Clang's thread safety attributes: which mutex guards what, checked at compile time (clang -Wthread-safety). Nothing
// to other compilers. https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#if defined(__clang__)
#define HMSHIM_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define HMSHIM_THREAD_ANNOTATION(x)
#endif

#define HMSHIM_CAPABILITY(name) HMSHIM_THREAD_ANNOTATION(capability(name))
#define HMSHIM_SCOPED_CAPABILITY HMSHIM_THREAD_ANNOTATION(scoped_lockable)
#define HMSHIM_GUARDED_BY(mutex) HMSHIM_THREAD_ANNOTATION(guarded_by(mutex))
#define HMSHIM_REQUIRES(mutex) HMSHIM_THREAD_ANNOTATION(requires_capability(mutex))
#define HMSHIM_EXCLUDES(mutex) HMSHIM_THREAD_ANNOTATION(locks_excluded(mutex))
#define HMSHIM_ACQUIRE(...) HMSHIM_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define HMSHIM_RELEASE(...) HMSHIM_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
