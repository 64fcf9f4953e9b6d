/* SPDX-License-Identifier: Apache-2.0 */
	.section .rodata
	.globl guest_elf_start, guest_elf_end
	.balign 4096
guest_elf_start:
#ifdef __x86_64__
	.incbin "guest/guest.elf" /* relative to the build folder */
#endif
guest_elf_end:
	.byte 0
	.section .note.GNU-stack, "", @progbits
