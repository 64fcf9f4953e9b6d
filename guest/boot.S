/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the PVH entry (32-bit, paging off, ebx = start info) or the real-mode start of another vCPU
 * to C at CPL 3. Tables are written out here rather than computed: on a PVM host each CPL 0
 * instruction is emulated. What CPL 0 does later is in `trap` below, and is short for that reason.
 */
#include "layout.h"

	.section .note.pvh, "a", @note
	.balign 4
	.long 4, 8, 18 /* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.quad entry32

/* One stub a vector, 16 bytes each, at GUEST_BASE (guest.ld checks it). */
	.section .stubs, "ax"
	.globl stubs
	.code64
stubs:
	.set vector, 0
	.rept 256
	.balign 16
	.if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
	.else
	push $0
	.endif
	push $vector
	jmp trap
	.set vector, vector + 1
	.endr

	.text
	.code32
	.globl entry32
entry32:
	cli
	cld
	lgdt gdt_pointer
	ljmp $SEL_CODE32, $common32
other32:
	xorl %ebx, %ebx
common32:
	movl $SEL_DATA, %eax
	movl %eax, %ds
	movl %eax, %es
	movl %eax, %ss
	movl $0x620, %eax /* PAE, OSFXSR, OSXMMEXCPT */
	movl %eax, %cr4
	movl boot_cr3, %eax
	movl %eax, %cr3
	movl $0xc0000080, %ecx /* EFER */
	movl $0x100, %eax      /* LME */
	xorl %edx, %edx
	wrmsr
	movl $0x80010033, %eax /* PG WP NE ET MP PE */
	movl %eax, %cr0
	ljmp $SEL_CODE64, $common64

	.code64
common64:
	movl $1, %eax
	lock xaddl %eax, slots_taken
	cmpl $MAX_CPUS, %eax
	jae park
	lidt idt_pointer
	movl %eax, %edi /* slot: first argument of guest_enter() */

	movl %eax, %ecx
	imull $KERNEL_STACK, %ecx
	leal kernel_stacks + KERNEL_STACK - 16(%ecx), %esp
	movq %rdi, 8(%rsp) /* the trap code finds the slot there */

	movl %eax, %ecx
	imull $TSS_SIZE, %ecx
	addl $task_states, %ecx
	movl %esp, 4(%ecx) /* RSP0 */
	movw $TSS_IO_MAP, 102(%ecx)

	shll $4, %eax
	leal gdt + SEL_TSS(%eax), %edx
	addl $SEL_TSS, %eax
	movl %ecx, %esi
	shll $16, %esi
	orl $TSS_LIMIT, %esi
	movl %esi, (%edx)
	movl %ecx, %esi
	andl $0xff000000, %esi
	shrl $16, %ecx
	andl $0xff, %ecx
	leal 0x8900(%esi, %ecx), %esi
	movl %esi, 4(%edx)
	ltr %ax

	movl $SEL_USER_DATA, %eax
	movl %eax, %ds
	movl %eax, %es
	movl %eax, %fs
	movl %eax, %gs
	movl %edi, %ecx
	imull $USER_STACK, %ecx
	leal user_stacks + USER_STACK - 8(%ecx), %ecx
	movl %ebx, %esi /* start info: second argument */
	pushq $SEL_USER_DATA
	pushq %rcx
	pushq $0x3002 /* IOPL 3, interrupts off */
	pushq $SEL_USER_CODE
	pushq $guest_enter
	iretq

/* On the stack: vector, error code, rip, cs, rflags, rsp, ss, 0, slot. */
trap:
	cmpl $2, (%rsp) /* NMI */
	je ignore
	cmpl $6, (%rsp)
	jne fault
	cmpl $SERVICE_MAGIC, %r11d
	jne fault
	addq $16, %rsp
	addq $2, (%rsp)
	cmpl $SERVICE_CPUID, %eax
	je service_cpuid
	cmpl $SERVICE_CR3, %eax
	je service_cr3
	cmpl $SERVICE_RESET, %eax
	je service_reset
park:
	cli
	hlt
	jmp park
service_cpuid:
	movl %edi, %eax
	movl %esi, %ecx
	cpuid
	iretq
service_cr3:
	movq %rdi, %cr3
	iretq
service_reset:
	lidt null_pointer /* CPL 3 makes the fault that finds no gate */
	iretq
ignore:
	addq $16, %rsp
	iretq
/* guest_fault(vector, error, rip, cr2, slot) at CPL 3, on a fresh stack. */
fault:
	movl 64(%rsp), %r8d
	testb $3, 24(%rsp)
	jnz 1f
	xorl %r8d, %r8d /* in CPL 0 the slot is not where it belongs */
1:	movq (%rsp), %rdi
	movl 8(%rsp), %esi
	movq 16(%rsp), %rdx
	movq %cr2, %rcx
	movl %r8d, %eax
	imull $USER_STACK, %eax
	leal user_stacks + USER_STACK - 8(%eax), %eax
	pushq $SEL_USER_DATA
	pushq %rax
	pushq $0x3002
	pushq $SEL_USER_CODE
	pushq $guest_fault
	iretq

/* Copied to TRAMPOLINE; real mode, CS = TRAMPOLINE / 16. */
	.section .rodata
	.globl trampoline, trampoline_end
	.code16
trampoline:
	cli
	cld
	xorw %ax, %ax
	movw %ax, %ds
	lgdtl TRAMPOLINE + trampoline_gdt - trampoline
	movl %cr0, %eax
	orl $1, %eax
	movl %eax, %cr0
	ljmpl $SEL_CODE32, $other32
	.balign 4
trampoline_gdt:
	.word gdt_end - gdt - 1
	.long gdt
trampoline_end:

	.data
	.balign 8
	.globl boot_cr3
boot_cr3:
	.long pml4
slots_taken:
	.long 0
gdt_pointer:
	.word gdt_end - gdt - 1
	.quad gdt
	.balign 8
idt_pointer:
	.word idt_end - idt - 1
	.quad idt
	.balign 8
null_pointer:
	.word 0
	.quad 0

	.balign 16
gdt:
	.quad 0
	.quad 0x00af9b000000ffff /* SEL_CODE64 */
	.quad 0x00cf93000000ffff /* SEL_DATA */
	.quad 0x00cf9b000000ffff /* SEL_CODE32 */
	.quad 0
	.quad 0x00cff3000000ffff /* SEL_USER_DATA */
	.quad 0x00affb000000ffff /* SEL_USER_CODE */
	.quad 0
	.fill MAX_CPUS * 2, 8, 0 /* SEL_TSS: filled in by each vCPU */
gdt_end:

	.balign 16
idt:
	.set vector, 0
	.rept 256
	.word (GUEST_BASE + vector * 16) & 0xffff
	.word SEL_CODE64
	.word 0x8e00
	.word (GUEST_BASE + vector * 16) >> 16
	.quad 0
	.set vector, vector + 1
	.endr
idt_end:

/* The low 4 GiB in 2 MiB pages for CPL 3, accessed and dirty already. */
	.balign 4096
	.globl pml4, low_directories
pml4:
	.quad pdpt + 0x27
	.fill 511, 8, 0
pdpt:
	.set directory, 0
	.rept 4
	.quad low_directories + directory * 4096 + 0x27
	.set directory, directory + 1
	.endr
	.fill 508, 8, 0
low_directories:
	.set page, 0
	.rept 2048
	.quad page * 0x200000 + 0xe7
	.set page, page + 1
	.endr

	.bss
	.balign 4096
task_states:
	.skip MAX_CPUS * TSS_SIZE
kernel_stacks:
	.skip MAX_CPUS * KERNEL_STACK
user_stacks:
	.skip MAX_CPUS * USER_STACK

	.section .note.GNU-stack, "", @progbits
