// void* dlsym(void* handle, const char* name)
//
// Leaves by a jump to the function that is to answer (hmshim_dlsym_target, lookup_exports.cpp): the real dlsym derives RTLD_NEXT and
// RTLD_DEFAULT from its return address, which must stay the guest's.
  .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call hmshim_dlsym_target
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  jmp *%rax
  .cfi_endproc
  .size dlsym, .-dlsym
  .section .note.GNU-stack, "", @progbits
