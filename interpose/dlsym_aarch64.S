// void* dlsym(void* handle, const char* name)
//
// Leaves by a jump to the function that is to answer (hmshim_dlsym_target, lookup_exports.cpp): the real dlsym derives RTLD_NEXT and
// RTLD_DEFAULT from its return address (x30), which must stay the guest's.
  .text
  .globl dlsym
  .type dlsym, %function
dlsym:
  .cfi_startproc
  hint #34                     // bti c
  stp x29, x30, [sp, #-32]!
  .cfi_def_cfa_offset 32
  .cfi_offset x29, -32
  .cfi_offset x30, -24
  mov x29, sp
  stp x0, x1, [sp, #16]
  bl hmshim_dlsym_target
  mov x16, x0                  // x16: the register a BTI-guarded function may be jumped to through
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  .cfi_restore x29
  .cfi_restore x30
  .cfi_def_cfa_offset 0
  br x16
  .cfi_endproc
  .size dlsym, .-dlsym
  .section .note.GNU-stack, "", %progbits
